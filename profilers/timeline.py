"""Timelines: what ran when, on which rank. Runs and simulations produce the same type, and every view reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

from autotune.workloads.serial import stored_as


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """An interval of one activity. Times are seconds on one clock, from the start of the traced step."""

    rank: int
    track: str = field(metadata=stored_as("lane"))
    """The row in a view. Resources: "compute", "comm" and "host". Details: "ranges", "ops", "device" (from torch.profiler), and
    "decisions" (the active plan of a retuned run)."""
    kind: str
    """On track "compute": "forward", "backward", "optimizer". On "host": "data", "wait" (blocked on gradients). On "comm":
    "queue" (gradients are ready but not yet sent) and "comm" (a collective, from when this rank joined it). On "ranges":
    "range" (ours) and "other range". On "ops": "forward op", "backward op" …, or "op" outside every phase."""
    op: str
    """A collective has the same name on every rank; spans are matched by it."""
    start_s: float
    end_s: float
    num_bytes: int = 0

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Counter:
    """A sampled quantity, such as a device's power."""

    rank: int
    name: str
    unit: str
    points: tuple[tuple[float, float], ...]
    """Times, on the same clock as the spans, and values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Spans of all ranks, ordered by start, and sampled counters."""

    spans: tuple[Span, ...] = ()
    counters: tuple[Counter, ...] = ()
    clock_error_s: float = 0.0
    """The largest difference between the ranks' clocks."""

    @staticmethod
    def merge(parts: Iterable[Timeline]) -> Timeline:
        """One timeline from the ranks' own, which must share a clock."""
        listed = list(parts)
        spans = (span for part in listed for span in part.spans)
        return Timeline(
            spans=tuple(sorted(spans, key=lambda span: (span.start_s, span.rank, span.end_s))),
            counters=tuple(counter for part in listed for counter in part.counters),
            clock_error_s=max((part.clock_error_s for part in listed), default=0.0),
        )

    def of_rank(self, rank: int) -> Timeline:
        return dataclasses.replace(
            self,
            spans=tuple(span for span in self.spans if span.rank == rank),
            counters=tuple(counter for counter in self.counters if counter.rank == rank),
        )

    def total_s(self, kind: str) -> float:
        """Time spent on one kind, summed over spans."""
        return sum(span.duration_s for span in self.spans if span.kind == kind)

    def shifted(self, offset_s: float) -> Timeline:
        """The same on a clock that reads `offset_s` more."""
        spans = (
            dataclasses.replace(span, start_s=span.start_s + offset_s, end_s=span.end_s + offset_s)
            for span in self.spans
        )
        counters = (
            dataclasses.replace(counter, points=tuple((moment + offset_s, value) for moment, value in counter.points))
            for counter in self.counters
        )
        return dataclasses.replace(self, spans=tuple(spans), counters=tuple(counters))


def all_reduce_name(index: int) -> str:
    """The name of the all-reduce that a step posts as number `index`, on every rank."""
    return f"all-reduce {index}"
