"""Which rank's doing the end of a step waited for, all the way back to its start.

From the moment the last rank ends, walk back in time. What a rank computes, loads or leaves idle is followed to its
start. Communication is followed to the moment the last rank joined the collective, whatever else this rank did
meanwhile, and from there the path goes on at that rank: it alone decided when the collective could run. A rank that
waits for a straggler says nothing about the time; the straggler does, so the path goes on there at the same moment.

A timeline -> segments that follow each other without gap over the whole window. Left out: that a joined collective may
itself have been held up by another on the same link; a timeline does not tell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.profilers.activity import Activities, Activity, Stretch, checked_window, stretch_before
from autotune.profilers.timeline import Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A part of the path: what one rank did."""

    rank: int
    kind: Activity
    op: str
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticalPath:
    """Segments in order of time; each starts where the one before ends."""

    segments: tuple[Segment, ...] = ()

    def totals_s(self) -> dict[tuple[int, Activity], float]:
        """Time on the path by rank and kind, the longest first."""
        totals: dict[tuple[int, Activity], float] = defaultdict(float)
        for segment in self.segments:
            totals[segment.rank, segment.kind] += segment.duration_s
        return dict(sorted(totals.items(), key=lambda item: -item[1]))


def critical_path(timeline: Timeline, *, window: tuple[float, float] | None = None) -> CriticalPath:
    """The path through the whole step, or through a window of it."""
    activities = Activities(timeline)
    if not activities.ranks:
        return CriticalPath()
    start, end = checked_window(window) if window is not None else activities.whole()
    stretches = {rank: activities.stretches(rank, (start, end)) for rank in activities.ranks}
    rank = max(activities.ranks, key=lambda rank: (min(activities.extent(rank)[1], end), -rank))
    segments: list[Segment] = []
    moment = end
    while moment > start:
        segment, next_rank = _segment_before(stretches, rank, moment)
        segments.append(segment)
        rank, moment = next_rank, segment.start_s
    return CriticalPath(segments=tuple(reversed(segments)))


def _segment_before(stretches: Mapping[int, tuple[Stretch, ...]], rank: int, moment: float) -> tuple[Segment, int]:
    """The segment that ends at a moment, and the rank that the path goes on at."""
    rank, stretch = _past_stragglers(stretches, rank, moment)
    start, next_rank = stretch.start_s, rank
    if stretch.activity is Activity.COMMUNICATION and stretch.collective is not None:
        start = max(stretch.collective.joined_s, stretches[rank][0].start_s)
        next_rank = stretch.collective.last_rank
    return Segment(rank=rank, kind=stretch.activity, op=stretch.op, start_s=start, end_s=moment), next_rank


def _past_stragglers(stretches: Mapping[int, tuple[Stretch, ...]], rank: int, moment: float) -> tuple[int, Stretch]:
    """The rank that a chain of waits ends at, and what it does just before a moment.

    Ranks that wait for each other in a circle, which only clocks that are apart can show, stop where the circle closes."""
    passed: set[int] = set()
    while True:
        passed.add(rank)
        stretch = stretch_before(stretches[rank], moment)
        if stretch.activity is not Activity.STRAGGLER or stretch.collective is None:
            return rank, stretch
        if stretch.collective.last_rank in passed:
            return rank, stretch
        rank = stretch.collective.last_rank
