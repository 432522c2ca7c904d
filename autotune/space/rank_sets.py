"""Coordinate of the ranks that a plan uses: all of them, or one of the sets that were found worth trying.

Of n ranks there are 2^n sets. Which of them are worth a trial is found elsewhere (`autotune.search.rank_sets`), by predictions
or by the speeds of devices. Here they get names that a search can choose by: their ranks, such as "0-3,8".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.workloads.plan import Plan
from autotune.workloads.split import Bounds

ALL = "all"
NAME = "ranks"
TEXT = "the ranks that take part; the others are left out"


@dataclass(frozen=True, kw_only=True)  # no slots: the derived table is kept in the instance
class RankSets:
    """Sets of ranks to choose from, besides all of them."""

    sets: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def by_name(self) -> dict[str, tuple[int, ...]]:
        return {name_of(ranks): ranks for ranks in self.sets}

    @property
    def choices(self) -> tuple[str, ...]:
        """None where there are only all ranks."""
        return (ALL, *self.by_name) if self.sets else ()

    def name(self, plan: Plan) -> str:
        """The choice that a plan has made, or `ALL` where it is none of these."""
        if not plan.leaves_out:
            return ALL
        name = name_of(plan.used_ranks)
        return name if name in self.by_name else ALL


ALL_RANKS = RankSets()


def among(limits: Bounds, ranks: Sequence[int]) -> Bounds:
    """The same bounds for these ranks, and no samples for the others."""
    used = set(ranks)
    return Bounds(
        minimums=tuple(low if rank in used else 0 for rank, low in enumerate(limits.minimums)),
        caps=tuple(high if rank in used else 0 for rank, high in enumerate(limits.caps)),
    )


def name_of(ranks: Sequence[int]) -> str:
    """Ranks in order, runs of neighbours as one: "0-3,8"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ",".join("-".join(map(str, run)) for run in runs)
