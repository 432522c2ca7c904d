"""Who trains on which sample: one seeded permutation shared by all ranks, cut by prefix sums of the split.

Step s takes positions [sB, (s+1)B) of the epoch's permutation and rank i its slice of them, so every sample is used
exactly once per epoch under any split, and step counts are equal by construction. The last batch of an epoch is short;
its slices keep the split's proportions and gradients are weighted by its true size.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from workloads.split import Bounds, proportional


class Batches:
    """The batches of one rank. `take(step)` is a pure function of the step, so any rank can resume anywhere."""

    def __init__(self, dataset: Dataset[Any], samples: Sequence[int], rank: int, *, seed: int) -> None:
        self._dataset = dataset
        self._samples = tuple(samples)
        self._rank = rank
        self._seed = seed
        self.global_batch = sum(samples)
        self.num_samples = len(cast("Sized", dataset))  # map-style data sets have a length
        self.steps_per_epoch = -(-self.num_samples // self.global_batch)
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.long)

    def take(self, step: int) -> tuple[Any, int, int]:
        """The batch of this rank in `step` (None where it has no samples), its size, and the size over all ranks."""
        indices, total = self.indices(step)
        return (self.fetch(indices) if len(indices) else None), len(indices), total

    def fetch(self, indices: Tensor) -> Any:
        """Those samples of the data set, as one batch."""
        if isinstance(self._dataset, TensorDataset):
            return self._dataset[cast("int", indices)]  # a tensor of indices is fine
        return default_collate([self._dataset[index] for index in indices.tolist()])

    def indices(self, step: int) -> tuple[Tensor, int]:
        """Which samples of the data set this rank takes in `step`, and how many all ranks take together."""
        epoch, within = divmod(step, self.steps_per_epoch)
        self._shuffle(epoch)
        chunk = self._order[within * self.global_batch : (within + 1) * self.global_batch]
        split = self._samples if len(chunk) == self.global_batch else _short_split(self._samples, len(chunk))
        start = [0, *accumulate(split)][self._rank]
        return chunk[start : start + split[self._rank]], len(chunk)

    def _shuffle(self, epoch: int) -> None:
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._order = torch.randperm(self.num_samples, generator=generator)
            self._epoch = epoch


def _short_split(samples: Sequence[int], total: int) -> tuple[int, ...]:
    limits = Bounds(minimums=(0,) * len(samples), caps=tuple(samples))
    return proportional([float(count) for count in samples], total, limits)
