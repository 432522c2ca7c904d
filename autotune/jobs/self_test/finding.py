"""What a check has found. Plain data, without torch and MPI: the examination of one machine uses it too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing looked at."""

    what: str
    state: str
    """"ok", "note" (works, with a remark) or "problem"."""
    detail: str
    fix: str = ""
    ranks: tuple[int, ...] = ()
    """The ranks concerned, in a self-test of a job."""
    measured: tuple[Any, ...] = ()
    """What each rank has measured, in the order of ranks; None for one without an answer."""


def named_ranks(ranks: Sequence[int], size: int) -> str:
    """The ranks of a finding, in words."""
    if size > 1 and len(ranks) == size:
        return "both ranks" if size == 2 else f"all {size} ranks"
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"


def ranks_of(found: Iterable[tuple[int, T]]) -> dict[T, list[int]]:
    """The ranks of which each thing is true, in the order in which the things appear."""
    ranks: dict[T, list[int]] = {}
    for rank, thing in found:
        ranks.setdefault(thing, []).append(rank)
    return ranks
