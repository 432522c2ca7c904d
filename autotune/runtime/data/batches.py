"""The batches of one rank: their samples (`sample_order`), read when needed or ahead (`prefetch`).

A step is always read under the split under which it is used: `take(step)` is a pure function of the step and of the
splits that all ranks agree on, so any rank can resume at any step.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from autotune.runtime.data.order_sources import Orders
from autotune.runtime.data.prefetch import Loading, Prefetch
from autotune.runtime.data.sample_order import Part, SampleOrder
from autotune.runtime.data.split_history import check_not_taken
from autotune.workloads.errors import SpecError
from autotune.workloads.workload import Workload

READ_WHEN_NEEDED = Loading()
_BEFORE = {"order": "shuffled", "drop_last": False}
"""The values of checkpoints without these entries."""


class Batches:
    """The batches of one rank, of a map-style data set that is the same on every rank."""

    def __init__(  # noqa: PLR0913 - the parts of batches
        self,
        dataset: Dataset[Any],
        samples: Sequence[int],
        rank: int,
        *,
        seed: int,
        work: Sequence[float] | Tensor | None = None,
        loss_weights: Sequence[float] | Tensor | None = None,
        loading: Loading = READ_WHEN_NEEDED,
        min_samples: int = 1,
        orders: Orders | None = None,
    ) -> None:
        """`work`, `loss_weights` (a number per sample), `min_samples`, `orders`: see `SampleOrder`."""
        self._dataset, self._loading = dataset, loading
        self.num_samples = len(cast("Sized", dataset))  # map-style data sets have a length
        self.order = SampleOrder(
            self.num_samples,
            samples,
            rank,
            seed=seed,
            work=work,
            loss_weights=loss_weights,
            min_samples=min_samples,
            orders=orders,
        )
        self.global_batch = self.order.global_batch
        self.next_step = 0
        """The step after the last one that was taken."""
        self._worker_seed = (seed * 1_000_003 + rank) % 2**63
        self._ahead = self._prefetch()

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches of an epoch."""
        return self.order.orders.num_steps()

    def begin(self, epoch: int, resumed: int | None = None) -> range:
        """The steps of an epoch that all ranks begin: see `Orders.begin`."""
        return self.order.orders.begin(epoch, resumed)

    def use(
        self,
        loading: Loading,
        work: Sequence[float] | Tensor | None = None,
        loss_weights: Sequence[float] | Tensor | None = None,
    ) -> None:
        """Set the loading and the weights of the following batches."""
        self.order.weigh(work, loss_weights)
        if loading != self._loading:
            self.close()
            self._loading = loading
            self._ahead = self._prefetch()
        self._changed()

    def take(self, step: int) -> tuple[Any, int, int]:
        """The batch of this rank in `step` (None without samples), its size, and the size over all ranks."""
        part = self.order.part(step)
        self.next_step = step + 1
        if self._ahead is not None:
            batch = self._ahead.take(step)
        else:
            batch = self.fetch(part.indices) if len(part.indices) else None
        return batch, len(part.indices), part.total

    def part(self, step: int) -> Part:
        """This rank's samples in `step`, their work, and the weight of its loss."""
        return self.order.part(step)

    def equivalent_samples(self, part: Part) -> float:
        """The work of a part, in samples of mean work."""
        return part.work / self.order.mean_work

    def indices(self, step: int) -> tuple[Tensor, int]:
        """The indices of this rank's samples in `step`, and the number of samples of all ranks."""
        part = self.order.part(step)
        return part.indices, part.total

    def fetch(self, indices: Tensor) -> Any:
        """Read these samples of the data set as one batch."""
        if isinstance(self._dataset, TensorDataset) and self._loading.collate_fn is None:
            return self._loading.pin(self._dataset[cast("int", indices)])  # it accepts a tensor of indices
        many = getattr(self._dataset, "__getitems__", None)
        listed = indices.tolist()
        return self._loading.pin(
            self._loading.collate(many(listed) if many else [self._dataset[index] for index in listed])
        )

    def filler(self, num_samples: int) -> Any:
        """A batch for a rank without samples in a step: the first of the data set, with weight 0."""
        return self.fetch(torch.arange(num_samples) % self.num_samples)

    def resplit(self, from_step: int, samples: Sequence[int]) -> None:
        """Split batches like this from `from_step` on, which no rank has taken; the same call on all ranks.

        Batches that were read ahead under another split are read again.
        """
        check_not_taken(from_step, self.next_step)
        self.order.resplit(from_step, samples)
        self._changed()

    def state_dict(self) -> dict[str, Any]:
        """The position of training in the data: the next step, and the splits from there on."""
        return {
            "next_step": self.next_step,
            "splits": self.order.splits.state(self.next_step),
            **self._identity(),
            **self.order.orders.state(self.next_step),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume; on another number of ranks with the split that this object was made with.

        Seed, data, order and global batch must be the same: they determine the samples of the previous steps.
        """
        check_same(_BEFORE | state, self._identity())
        self.order.load(state)
        self.next_step = int(state["next_step"])
        self._changed()

    def close(self) -> None:
        """End worker processes, if there are any."""
        if self._ahead is not None:
            self._ahead.close()

    def _identity(self) -> dict[str, Any]:
        orders = self.order.orders
        return {
            "order": orders.kind,
            "drop_last": orders.drop_last,
            "seed": self.order.seed,
            "num_samples": self.num_samples,
            "global_batch": self.global_batch,
        }

    def _prefetch(self) -> Prefetch | None:
        if self._loading.num_workers == 0:
            return None
        return Prefetch(
            self._dataset, self._loading, lambda step: self.indices(step)[0].tolist(), seed=self._worker_seed
        )

    def _changed(self) -> None:
        if self._ahead is not None:
            self._ahead.changed()


def check_same(state: dict[str, Any], own: dict[str, Any]) -> None:
    """Refuse a checkpoint of other data or of another order."""
    for name, value in own.items():
        if state.get(name) != value:
            raise SpecError(
                f"the checkpoint's {name} is {state.get(name)} but the job's is {value}: samples would be left out or "
                "used twice; resume with what the job began with"
            )


def batches_of(workload: Workload, samples: Sequence[int], rank: int, *, seed: int) -> Batches:
    """The batches of a workload, with its loading and weights: see `Workload`."""
    dataset = workload.dataset()
    functions: dict[str, Any] = {name: getattr(workload, name, None) for name in ("work", "loss_weights")}
    loading = Loading(num_workers=getattr(workload, "num_workers", 0), collate_fn=getattr(workload, "collate", None))
    given = {name: function(dataset) for name, function in functions.items() if function is not None}
    return Batches(dataset, samples, rank, seed=seed, loading=loading, **given)
