"""The splits of global batches: those that all ranks agree on, each from a step on, and the split of a short batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from autotune.workloads.errors import SpecError
from autotune.workloads.split import Bounds, proportional


class SplitHistory:
    """The split of each step; the same on every rank."""

    def __init__(self, samples: Sequence[int]) -> None:
        self.global_batch = sum(samples)
        self.entries: list[tuple[int, tuple[int, ...]]] = [(0, tuple(samples))]
        """The first step of each split, in rising order; each applies until the next."""

    def resplit(self, from_step: int, samples: Sequence[int]) -> None:
        """Split batches like this from `from_step` until the next known split; the same call on all ranks."""
        current = self.entries[-1][1]
        if len(samples) != len(current) or sum(samples) != self.global_batch or min(samples) < 0:
            raise SpecError(
                f"a new split {list(samples)} must give {len(current)} ranks counts from 0 that sum to "
                f"{self.global_batch}, as {list(current)} does: the global batch never changes"
            )
        if from_step < 0:
            raise SpecError(f"a split is to hold from step {from_step}: steps are counted from 0")
        kept = [entry for entry in self.entries if entry[0] != from_step]
        self.entries = sorted([*kept, (from_step, tuple(samples))])

    def at(self, step: int) -> tuple[int, ...]:
        """The split of `step`."""
        return self.entries[bisect_right(self.entries, step, key=lambda entry: entry[0]) - 1][1]

    def state(self, step: int) -> list[Any]:
        """The splits from `step` on, for a checkpoint."""
        later = [entry for entry in self.entries if entry[0] > step]
        return [[first, list(split)] for first, split in ((step, self.at(step)), *later)]

    def load(self, state: list[Any]) -> None:
        """Load the splits of a checkpoint; one of another number of ranks changes nothing."""
        if len(state[0][1]) == len(self.entries[0][1]):
            self.entries = [self.entries[0]]
            for step, split in state:
                self.resplit(int(step), tuple(split))


def check_not_taken(from_step: int, next_step: int) -> None:
    """Refuse a split from a step on that was taken under another split."""
    if from_step < next_step:
        raise SpecError(
            f"a new split is to hold from step {from_step} but step {next_step - 1} has been taken: "
            f"agree on a step from {next_step} on"
        )


def slice_of(split: Sequence[int], length: int, rank: int, min_samples: int = 1) -> slice:
    """The slice of a rank in a batch of this length, which may be short."""
    if length < sum(split):
        split = short_split(split, length, min_samples)
    start = [0, *accumulate(split)][rank]
    return slice(start, start + split[rank])


def short_split(split: Sequence[int], length: int, min_samples: int) -> tuple[int, ...]:
    """The split of a short batch, in the same proportions. A rank has at least `min_samples`, or none."""
    limits = Bounds(minimums=(0,) * len(split), caps=tuple(split))
    found = proportional([float(count) for count in split], length, limits)
    if all(count == 0 or count >= min_samples for count in found):
        return found
    return _with_minimum(split, length, min_samples)


def _with_minimum(split: Sequence[int], length: int, min_samples: int) -> tuple[int, ...]:
    """A split among as many ranks as can have `min_samples` each, those with the largest shares."""
    by_share = sorted((rank for rank, count in enumerate(split) if count > 0), key=lambda rank: (-split[rank], rank))
    able = set(by_share[: max(length // min_samples, 1)])
    fewest = min(min_samples, length)
    caps = [max(count, fewest) if rank in able else 0 for rank, count in enumerate(split)]
    if sum(caps) < length:  # (2, 2) in a batch of 3: one rank takes a sample more than in whole batches
        caps = [length if rank in able else 0 for rank in range(len(split))]
    minimums = tuple(fewest if rank in able else 0 for rank in range(len(split)))
    weights = [float(count) if rank in able else 0.0 for rank, count in enumerate(split)]
    return proportional(weights, length, Bounds(minimums=minimums, caps=tuple(caps)))
