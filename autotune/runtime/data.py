"""The batches of one rank: which samples (`sample_order`), read now or ahead (`prefetch`), from which step on.

The split a step is fetched under is by definition the one it is used under: `take(step)` is a pure function of the step and
of the splits that all ranks have agreed on, so any rank can resume anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, cast

from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from autotune.runtime.prefetch import Loading, Prefetch
from autotune.runtime.sample_order import Part, SampleOrder
from workloads.errors import SpecError
from workloads.workload import Workload

READ_WHEN_NEEDED = Loading()


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
    ) -> None:
        """`work` and `loss_weights`: one number for each sample, see `SampleOrder`."""
        self._dataset, self._loading = dataset, loading
        self.num_samples = len(cast("Sized", dataset))  # map-style data sets have a length
        self.order = SampleOrder(self.num_samples, samples, rank, seed=seed, work=work, loss_weights=loss_weights)
        self.global_batch = self.order.global_batch
        self.steps_per_epoch = self.order.steps_per_epoch
        self.next_step = 0
        """The one after the last that was taken."""
        self._ahead: Prefetch | None = None
        if loading.num_workers > 0:
            worker_seed = (seed * 1_000_003 + rank) % 2**63
            self._ahead = Prefetch(dataset, loading, lambda step: self.indices(step)[0].tolist(), seed=worker_seed)

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
            return self._dataset[cast("int", indices)]  # a tensor of indices is fine
        many = getattr(self._dataset, "__getitems__", None)
        listed = indices.tolist()
        return self._loading.collate(many(listed) if many else [self._dataset[index] for index in listed])

    def resplit(self, from_step: int, samples: Sequence[int]) -> None:
        """Divide batches like this from `from_step` on, a step that no rank has taken yet. All ranks say the same.

        What was fetched ahead for other samples is fetched again.
        """
        if from_step < self.next_step:
            raise SpecError(
                f"a new split is to hold from step {from_step} but step {self.next_step - 1} has been taken: "
                f"agree on a step from {self.next_step} on"
            )
        self.order.resplit(from_step, samples)
        if self._ahead is not None:
            self._ahead.changed()

    def state_dict(self) -> dict[str, Any]:
        """Where training stands in the data: the next step, and the splits from there on."""
        now = self.order.split(self.next_step)
        later = [entry for entry in self.order.splits if entry[0] > self.next_step]
        return {
            "next_step": self.next_step,
            "splits": [[step, list(split)] for step, split in ((self.next_step, now), *later)],
            "seed": self.order.seed,
            "num_samples": self.num_samples,
            "global_batch": self.global_batch,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; on another number of ranks with the split that this object was made with.

        Seed, data and global batch must be the same: they decide which samples the steps before have used.
        """
        own = {"seed": self.order.seed, "num_samples": self.num_samples, "global_batch": self.global_batch}
        for name, value in own.items():
            if state[name] != value:
                raise SpecError(
                    f"the checkpoint's {name} is {state[name]} but the job's is {value}: samples would be left out or "
                    "used twice; resume with what the job began with"
                )
        splits = [(int(step), tuple(split)) for step, split in state["splits"]]
        if len(splits[0][1]) == len(self.order.splits[0][1]):
            self.order.splits = [self.order.splits[0]]
            for step, split in splits:
                self.order.resplit(step, split)
        self.next_step = int(state["next_step"])
        if self._ahead is not None:
            self._ahead.changed()

    def close(self) -> None:
        """End worker processes, if there are any."""
        if self._ahead is not None:
            self._ahead.close()


def batches_of(workload: Workload, samples: Sequence[int], rank: int, *, seed: int) -> Batches:
    """The batches of a workload, read and weighted as it says: see `Workload`."""
    dataset = workload.dataset()
    offers: dict[str, Any] = {name: getattr(workload, name, None) for name in ("work", "loss_weights")}
    loading = Loading(num_workers=getattr(workload, "num_workers", 0), collate_fn=getattr(workload, "collate", None))
    given = {name: function(dataset) for name, function in offers.items() if function is not None}
    return Batches(dataset, samples, rank, seed=seed, loading=loading, **given)
