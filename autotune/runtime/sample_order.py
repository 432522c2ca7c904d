"""Which samples a rank takes in a step: a pure function of the step, the seed and the splits that were agreed on.

All ranks share one seeded permutation of each epoch. Step s takes positions [sB, (s+1)B) of it, whatever the split, and the
split only says who takes which of them. So it may change at any step (DBS, arXiv 2007.11831, changes it per epoch): every
sample is used exactly once per epoch and step counts are equal by construction, as long as all ranks agree from which step a
split holds. The last batch of an epoch is short and keeps the split's proportions.

Samples of unequal work (tokens) are dealt instead of sliced: the largest first, each to the rank that would be done with it
earliest if ranks were as fast as their shares (the longest-processing-time rule on uniform machines; Gonzalez, Ibarra and
Sahni, 1977). A rank's number of samples then varies from step to step, its share of the work does not.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from workloads.errors import SpecError
from workloads.split import Bounds, proportional

_KEPT_PARTS = 64
_KEPT_EPOCHS = 2
"""Loaders look ahead into the next epoch while this one is trained on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What one rank does of one step."""

    indices: Tensor
    """Of the data set's samples."""
    total: int
    """Samples of all ranks together."""
    work: float
    """Of its samples; their number where the data set does not say."""
    weight: float
    """What its mean loss counts in that of the whole batch; the weights of all ranks sum to 1."""


class SampleOrder:
    """One rank's view of the order in which all ranks together go through a data set."""

    def __init__(  # noqa: PLR0913 - what an order is made of
        self,
        num_samples: int,
        samples: Sequence[int],
        rank: int,
        *,
        seed: int,
        work: Sequence[float] | Tensor | None = None,
        loss_weights: Sequence[float] | Tensor | None = None,
    ) -> None:
        """`work`: of each sample, to be dealt out in proportion to the split. `loss_weights`: what each sample counts in the
        loss, if that is not a plain mean over samples: its tokens, where the loss is a mean over tokens.
        """
        self.num_samples, self.global_batch = num_samples, sum(samples)
        self.steps_per_epoch = -(-num_samples // self.global_batch)
        self.rank, self.seed = rank, seed
        self._work = _positive("work", work, num_samples)
        self._loss_weights = _positive("loss weights", loss_weights, num_samples)
        self.mean_work = 1.0 if self._work is None else float(self._work.mean())
        """Of a sample."""
        self.splits: list[tuple[int, tuple[int, ...]]] = [(0, tuple(samples))]
        """From which step each holds, in rising order; each until the next."""
        self._orders: dict[int, Tensor] = {}
        self._parts: dict[int, Part] = {}

    def resplit(self, from_step: int, samples: Sequence[int]) -> None:
        """From `from_step` on, until the next split that is known, divide batches like this. All ranks say the same."""
        self.check_split(samples)
        if from_step < 0:
            raise SpecError(f"a split is to hold from step {from_step}: steps are counted from 0")
        kept = [entry for entry in self.splits if entry[0] != from_step]
        self.splits = sorted([*kept, (from_step, tuple(samples))])
        self._parts.clear()

    def check_split(self, samples: Sequence[int]) -> None:
        """Refuse what does not divide this batch among these ranks."""
        current = self.splits[-1][1]
        if len(samples) != len(current) or sum(samples) != self.global_batch or min(samples) < 0:
            raise SpecError(
                f"a new split {list(samples)} must give {len(current)} ranks counts from 0 that sum to "
                f"{self.global_batch}, as {list(current)} does: the global batch never changes"
            )

    def split(self, step: int) -> tuple[int, ...]:
        """The split that holds in `step`."""
        return self.splits[bisect_right(self.splits, step, key=lambda entry: entry[0]) - 1][1]

    def part(self, step: int) -> Part:
        """What this rank does in `step`."""
        if step not in self._parts:
            if len(self._parts) >= _KEPT_PARTS:
                self._parts.clear()
            self._parts[step] = self._make_part(step)
        return self._parts[step]

    def _make_part(self, step: int) -> Part:
        epoch, within = divmod(step, self.steps_per_epoch)
        chunk = self._order(epoch)[within * self.global_batch : (within + 1) * self.global_batch]
        split = self.split(step)
        if self._work is None:
            mine = chunk[_slice(split, len(chunk), self.rank)]
        else:
            mine = chunk[deal(self._work[chunk], split) == self.rank]
        return Part(
            indices=mine,
            total=len(chunk),
            work=float(len(mine)) if self._work is None else float(self._work[mine].sum()),
            weight=self._weight(mine, chunk),
        )

    def _weight(self, mine: Tensor, chunk: Tensor) -> float:
        if self._loss_weights is None:
            return len(mine) / len(chunk)
        return float(self._loss_weights[mine].sum() / self._loss_weights[chunk].sum())

    def _order(self, epoch: int) -> Tensor:
        if epoch not in self._orders:
            if len(self._orders) >= _KEPT_EPOCHS:
                del self._orders[min(self._orders)]
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._orders[epoch] = torch.randperm(self.num_samples, generator=generator)
        return self._orders[epoch]


def deal(work: Tensor, shares: Sequence[int]) -> Tensor:
    """The rank of each of these samples, such that the work of ranks is as their shares; one without a share gets none."""
    able = [rank for rank, share in enumerate(shares) if share > 0]
    speeds = np.array([shares[rank] for rank in able], dtype=np.float64)
    loads = np.zeros(len(able))
    owners = torch.empty(len(work), dtype=torch.long)
    for position in torch.sort(work, descending=True, stable=True).indices.tolist():
        amount = float(work[position])
        place = int(np.argmin((loads + amount) / speeds))
        loads[place] += amount
        owners[position] = able[place]
    return owners


def _slice(split: Sequence[int], length: int, rank: int) -> slice:
    """Where a rank's samples stand in a batch of this length, which is short at the end of an epoch."""
    if length < sum(split):
        limits = Bounds(minimums=(0,) * len(split), caps=tuple(split))
        split = proportional([float(count) for count in split], length, limits)
    start = [0, *accumulate(split)][rank]
    return slice(start, start + split[rank])


def _positive(what: str, values: Sequence[float] | Tensor | None, num_samples: int) -> Tensor | None:
    if values is None:
        return None
    given = torch.as_tensor(values, dtype=torch.float64)
    if given.shape != (num_samples,):
        raise SpecError(
            f"{what} of shape {list(given.shape)} for {num_samples} samples: give one number for each sample of the data set"
        )
    if bad := [value for value in given.tolist() if not (math.isfinite(value) and value > 0)][:1]:
        raise SpecError(
            f"{what} hold {bad[0]}: every sample's must be above 0; leave samples without any out of the data"
        )
    return given
