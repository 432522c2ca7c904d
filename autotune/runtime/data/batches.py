"""The batches of one rank: which samples (`sample_order`), read now or ahead (`prefetch`), from which step on.

The split a step is fetched under is by definition the one it is used under: `take(step)` is a pure function of the step and
of the splits that all ranks have agreed on, so any rank can resume anywhere.
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
"""What checkpoints without these entries were made with."""


class Batches:
    """The batches of one rank, of a map-style data set that is the same on every rank."""

    def __init__(  # noqa: PLR0913 - what batches are made of
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
        """`work` and `loss_weights`: one number for each sample, see `SampleOrder`, as for `min_samples` and `orders`."""
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
        """The one after the last that was taken."""
        self._worker_seed = (seed * 1_000_003 + rank) % 2**63
        self._ahead = self._prefetch()

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch."""
        return self.order.orders.num_steps()

    def begin(self, epoch: int, resumed: int | None = None) -> range:
        """The steps of an epoch that all ranks are about to go through: see `Orders.begin`."""
        return self.order.orders.begin(epoch, resumed)

    def use(
        self,
        loading: Loading,
        work: Sequence[float] | Tensor | None = None,
        loss_weights: Sequence[float] | Tensor | None = None,
    ) -> None:
        """Read and weigh like this from here on."""
        self.order.weigh(work, loss_weights)
        if loading != self._loading:
            self.close()
            self._loading = loading
            self._ahead = self._prefetch()
        self._changed()

    def take(self, step: int) -> tuple[Any, int, int]:
        """The batch of this rank in `step` (None where it has no samples), its size, and the size over all ranks."""
        part = self.order.part(step)
        self.next_step = step + 1
        if self._ahead is not None:
            batch = self._ahead.take(step)
        else:
            batch = self.fetch(part.indices) if len(part.indices) else None
        return batch, len(part.indices), part.total

    def part(self, step: int) -> Part:
        """This rank's samples in `step`, their work, and what its loss counts."""
        return self.order.part(step)

    def equivalent_samples(self, part: Part) -> float:
        """How many samples of mean work its work is."""
        return part.work / self.order.mean_work

    def indices(self, step: int) -> tuple[Tensor, int]:
        """Which samples of the data set this rank takes in `step`, and how many all ranks take together."""
        part = self.order.part(step)
        return part.indices, part.total

    def fetch(self, indices: Tensor) -> Any:
        """Those samples of the data set, as one batch, read here and now."""
        if isinstance(self._dataset, TensorDataset) and self._loading.collate_fn is None:
            return self._loading.pin(self._dataset[cast("int", indices)])  # a tensor of indices is fine
        many = getattr(self._dataset, "__getitems__", None)
        listed = indices.tolist()
        return self._loading.pin(
            self._loading.collate(many(listed) if many else [self._dataset[index] for index in listed])
        )

    def filler(self, num_samples: int) -> Any:
        """A batch for a rank that has no samples in a step: the first of the data set, which do not count there."""
        return self.fetch(torch.arange(num_samples) % self.num_samples)

    def resplit(self, from_step: int, samples: Sequence[int]) -> None:
        """Divide batches like this from `from_step` on, a step that no rank has taken yet. All ranks say the same.

        What was fetched ahead for other samples is fetched again.
        """
        check_not_taken(from_step, self.next_step)
        self.order.resplit(from_step, samples)
        self._changed()

    def state_dict(self) -> dict[str, Any]:
        """Where training stands in the data: the next step, and the splits from there on."""
        return {
            "next_step": self.next_step,
            "splits": self.order.splits.state(self.next_step),
            **self._identity(),
            **self.order.orders.state(self.next_step),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; on another number of ranks with the split that this object was made with.

        Seed, data, order and global batch must be the same: they decide which samples the steps before have used.
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
    """Refuse a checkpoint of other data, or of another order."""
    for name, value in own.items():
        if state.get(name) != value:
            raise SpecError(
                f"the checkpoint's {name} is {state.get(name)} but the job's is {value}: samples would be left out or "
                "used twice; resume with what the job began with"
            )


def batches_of(workload: Workload, samples: Sequence[int], rank: int, *, seed: int) -> Batches:
    """The batches of a workload, read and weighted as it says: see `Workload`."""
    dataset = workload.dataset()
    offers: dict[str, Any] = {name: getattr(workload, name, None) for name in ("work", "loss_weights")}
    loading = Loading(num_workers=getattr(workload, "num_workers", 0), collate_fn=getattr(workload, "collate", None))
    given = {name: function(dataset) for name, function in offers.items() if function is not None}
    return Batches(dataset, samples, rank, seed=seed, loading=loading, **given)
