"""The part of a plan that places groups of ops: which ranks compute them, on which shares of the batch.

Pipeline stages are the case of groups that follow each other, on ranks of their own (`PipelinePlan`). Here a group is any set
of ops, and a rank may compute several groups, with another share of the batch in each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from autotune.workloads.errors import SpecError
from autotune.workloads.plan.batch import check_sum


@dataclass(frozen=True, kw_only=True, slots=True)
class OpGroup:
    """Ops of the model, and the ranks that compute them."""

    ops: tuple[int, ...]
    """Indices in the model's graph, ascending."""
    ranks: tuple[int, ...]
    samples: tuple[int, ...]
    """Of each of these ranks, per step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementPlan:
    """Every op of the model in one group."""

    groups: tuple[OpGroup, ...]
    micro_batches: int = 1

    @property
    def global_batch(self) -> int:
        return sum(self.groups[0].samples)

    def group_of_op(self) -> dict[int, int]:
        """The group of every op, by its index."""
        return {op: number for number, group in enumerate(self.groups) for op in group.ops}

    def lanes(self) -> list[tuple[int, tuple[int, ...]]]:
        """Samples of a micro-batch that are on one rank in every group, and that rank: the coarsest common refinement."""
        ends = [list(accumulate(count // self.micro_batches for count in group.samples)) for group in self.groups]
        cuts = sorted({0}.union(*ends))
        return [
            (
                end - begin,
                tuple(
                    next(rank for rank, last in zip(group.ranks, stops, strict=True) if last >= end)
                    for group, stops in zip(self.groups, ends, strict=True)
                ),
            )
            for begin, end in pairwise(cuts)
        ]

    def most_samples(self, num_ranks: int) -> tuple[int, ...]:
        """Of each rank: the samples of the group in which it has most."""
        most = [0] * num_ranks
        for group in self.groups:
            for rank, count in zip(group.ranks, group.samples, strict=True):
                most[rank] = max(most[rank], count)
        return tuple(most)

    def part(self, place: Mapping[int, int]) -> PlacementPlan:
        """The same with other numbers for its ranks."""
        groups = tuple(replace(group, ranks=tuple(place[rank] for rank in group.ranks)) for group in self.groups)
        return replace(self, groups=groups)

    def check(self, samples: Sequence[int], global_batch: int) -> None:
        """Refuse groups that do not fit the ranks, the samples or each other."""
        twice = [op for op, count in Counter(op for group in self.groups for op in group.ops).items() if count > 1]
        if not self.groups or twice or any(not group.ops for group in self.groups):
            raise SpecError(
                f"the plan's groups name op {twice[0] if twice else None} twice, or none: every op is in one group"
            )
        for number, group in enumerate(self.groups):
            _check_group(number, group, len(samples), self.micro_batches, global_batch)
        if self.most_samples(len(samples)) != tuple(samples):
            raise SpecError(
                f"the plan has samples {list(samples)} but its groups {list(self.most_samples(len(samples)))}: a rank's samples are "
                "those of the group in which it has most"
            )


def _check_group(number: int, group: OpGroup, num_ranks: int, micro_batches: int, global_batch: int) -> None:
    ranks, counts = group.ranks, group.samples
    if (
        not ranks
        or len(set(ranks)) < len(ranks)
        or not set(ranks) <= set(range(num_ranks))
        or len(counts) != len(ranks)
    ):
        raise SpecError(
            f"group {number} has ranks {list(ranks)} with samples {list(counts)}: name ranks from 0 to {num_ranks - 1}, each once, "
            "with its samples"
        )
    check_sum(counts, global_batch, f"samples of group {number}")
    if micro_batches < 1 or any(count < 1 or count % micro_batches for count in counts):
        raise SpecError(
            f"group {number} has samples {list(counts)} in {micro_batches} micro-batches: each rank's must be a multiple of it, "
            "and at least one of each"
        )
