"""The tree of ranks that control messages travel along.

Rank 0 is the root. The ranks below a rank follow it in their numbers, so a subtree is a range of ranks, values of its
ranks join in rank order, and neighbours in the tree are mostly ranks of one host. In a small job every rank is a child of
rank 0, which is fastest. In a larger one a rank has two children, whose subtrees differ by one rank at most, and a message passes
log2(N) ranks; rank 0, which decides for all, has one child and sends each message once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

MOST_STAR, FAN_OUT = 5, 2
"""Ranks of a small job; children in a larger one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TreePlace:
    """One rank's place in the tree."""

    rank: int
    end: int
    """The ranks from this one to `end`, exclusive, are its subtree."""
    parent: int | None
    children: tuple[int, ...]

    @property
    def num_below(self) -> int:
        """Ranks of the subtree, this one included."""
        return self.end - self.rank


def place_of(rank: int, size: int) -> TreePlace:
    """Where a rank stands among `size` ranks."""
    fan_out = size if size <= MOST_STAR else FAN_OUT
    here, end, parent = 0, size, None
    while True:
        bounds = _children(here, end, 1 if here == 0 and size > MOST_STAR else fan_out)
        if here == rank:
            return TreePlace(rank=rank, end=end, parent=parent, children=tuple(first for first, _ in bounds))
        parent = here
        here, end = next((first, after) for first, after in bounds if first <= rank < after)


def _children(rank: int, end: int, fan_out: int) -> list[tuple[int, int]]:
    """The ranges of the subtrees below a rank."""
    num_below = end - rank - 1
    count = min(fan_out, num_below)
    starts = [rank + 1 + num_below * index // count for index in range(count)] if count else []
    return list(pairwise([*starts, end])) if starts else []
