"""The critical path of a step, over all ranks.

The path is followed backwards from the end of the last rank. An interval of computing, loading or idling is followed to its
start. Communication is followed to the time at which the last rank joined the collective, and the path continues at that
rank, since it determined the start of the collective. Where a rank waits for a straggler, the path continues at the
straggler at the same time.

A timeline -> consecutive segments over the whole window, without gaps. Left out: a collective may have been delayed by
another on the same link; a timeline does not show this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.profilers.activity import Activities, Activity, Stretch, checked_window, stretch_before
from autotune.profilers.timeline import Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A segment of the path: one activity of one rank."""

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
    """Segments in order of time; each starts at the end of the previous one."""

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
    """The segment that ends at a time, and the rank at which the path continues."""
    rank, stretch = _past_stragglers(stretches, rank, moment)
    start, next_rank = stretch.start_s, rank
    if stretch.activity is Activity.COMMUNICATION and stretch.collective is not None:
        start = max(stretch.collective.joined_s, stretches[rank][0].start_s)
        next_rank = stretch.collective.last_rank
    return Segment(rank=rank, kind=stretch.activity, op=stretch.op, start_s=start, end_s=moment), next_rank


def _past_stragglers(stretches: Mapping[int, tuple[Stretch, ...]], rank: int, moment: float) -> tuple[int, Stretch]:
    """The rank at the end of a chain of waits, and its activity just before a time.

    A cycle of waits, which only clock errors can cause, ends where it closes."""
    passed: set[int] = set()
    while True:
        passed.add(rank)
        stretch = stretch_before(stretches[rank], moment)
        if stretch.activity is not Activity.STRAGGLER or stretch.collective is None:
            return rank, stretch
        if stretch.collective.last_rank in passed:
            return rank, stretch
        rank = stretch.collective.last_rank
