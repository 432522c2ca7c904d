"""What happened when, on which rank. Runs and simulations produce the same type, and every view reads it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One thing that took time. Times are seconds on one clock, from the start of the traced step."""

    rank: int
    lane: str
    """What was busy: "compute", "comm" or "host"."""
    kind: str
    """"data", "forward", "backward", "comm", "wait", "optimizer"."""
    op: str
    start_s: float
    end_s: float
    num_bytes: int = 0

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Spans of all ranks, in order of their start."""

    spans: tuple[Span, ...] = ()

    @staticmethod
    def merge(parts: Iterable[Timeline]) -> Timeline:
        """One timeline from the ranks' own, which must share a clock."""
        spans = (span for part in parts for span in part.spans)
        return Timeline(spans=tuple(sorted(spans, key=lambda span: (span.start_s, span.rank, span.end_s))))

    def of_rank(self, rank: int) -> Timeline:
        return Timeline(spans=tuple(span for span in self.spans if span.rank == rank))

    def total_s(self, kind: str) -> float:
        """Time spent on one kind, summed over spans."""
        return sum(span.duration_s for span in self.spans if span.kind == kind)

    def shifted(self, offset_s: float) -> Timeline:
        """The same on a clock that reads `offset_s` more."""
        return Timeline(
            spans=tuple(
                Span(
                    rank=span.rank,
                    lane=span.lane,
                    kind=span.kind,
                    op=span.op,
                    start_s=span.start_s + offset_s,
                    end_s=span.end_s + offset_s,
                    num_bytes=span.num_bytes,
                )
                for span in self.spans
            )
        )
