"""The activity of each rank at each instant of a step.

Every span claims its interval, and at any instant the claim of highest precedence counts: computing, then loading data,
then a collective that all its ranks have joined, then one that waits for a rank, then a blocked host. A collective's span
is therefore two claims, before and after the last rank joined. The result is the upper envelope of the claims: one sweep
over their sorted edges with a heap of the active claims, O(n log n).

Spans of a timeline -> for each rank, consecutive stretches of time without gaps.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, pairwise
from typing import TypeAlias

from autotune.profilers.timeline import Span, Timeline
from autotune.workloads.errors import SpecError

Strength: TypeAlias = tuple[int, float, float, str, int]
"""Precedence; smaller is stronger: by activity, then by the rule of the activity."""


class Activity(StrEnum):
    """The activity of a rank at an instant, strongest first."""

    COMPUTE = "compute"
    DATA = "data"
    COMMUNICATION = "communication"
    STRAGGLER = "straggler wait"
    OTHER = "other"


ORDER = {activity: place for place, activity in enumerate(Activity)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """A collective; its ranks communicate from when the last of them joined."""

    op: str
    joined_s: float
    """When the last rank joined."""
    last_rank: int
    """That rank; of several at the same moment, the lowest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """An interval of one activity of one rank."""

    activity: Activity
    op: str
    """The operation or collective; empty where nothing was recorded."""
    start_s: float
    end_s: float
    collective: Collective | None = None
    """Given for communication and straggler waits."""

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


Claim: TypeAlias = tuple[Strength, Stretch]


class Activities:
    """The stretches of every rank that has spans, each over its own extent or over any window."""

    def __init__(self, timeline: Timeline) -> None:
        self._spans: dict[int, list[Span]] = defaultdict(list)
        self._claims: dict[int, list[Claim]] = defaultdict(list)
        for span, collective in zip(timeline.spans, _collectives(timeline.spans), strict=True):
            self._spans[span.rank].append(span)
            self._claims[span.rank] += _claims(span, collective)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self._spans))

    def extent(self, rank: int) -> tuple[float, float]:
        """From the earliest start of any span of the rank to the latest end."""
        spans = self._spans[rank]
        return min(span.start_s for span in spans), max(span.end_s for span in spans)

    def whole(self) -> tuple[float, float]:
        """The extent of all ranks together."""
        extents = [self.extent(rank) for rank in self._spans]
        return min((start for start, _ in extents), default=0.0), max((end for _, end in extents), default=0.0)

    def spans(self, rank: int) -> Sequence[Span]:
        return self._spans[rank]

    def stretches(self, rank: int, window: tuple[float, float]) -> tuple[Stretch, ...]:
        """The activities of the rank in a window, without gaps; empty for a window without length."""
        return _envelope(self._claims[rank], *window)


def checked_window(window: tuple[float, float]) -> tuple[float, float]:
    """A caller's window, validated."""
    if not window[0] <= window[1]:
        raise SpecError(f"the window goes from {window[0]:g} s to {window[1]:g} s: give its start first, then its end")
    return window


def stretch_before(stretches: Sequence[Stretch], moment_s: float) -> Stretch:
    """The stretch just before a time inside the window."""
    return stretches[bisect_left(stretches, moment_s, key=lambda stretch: stretch.start_s) - 1]


def is_collective(span: Span) -> bool:
    return span.track == "comm" and span.kind == "comm"


def _collectives(spans: Sequence[Span]) -> list[Collective | None]:
    """For each span the collective that it is a rank's part of, if it is one: the parts have the same name and, where a
    name repeats on a rank, the same repetition of it."""
    turns: dict[tuple[int, str], count[int]] = defaultdict(count)
    parts: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index in sorted(range(len(spans)), key=lambda index: spans[index].start_s):
        span = spans[index]
        if is_collective(span):
            parts[span.op, next(turns[span.rank, span.op])].append(index)
    found: list[Collective | None] = [None] * len(spans)
    for same in parts.values():
        last = max((spans[index] for index in same), key=lambda span: (span.start_s, -span.rank))
        collective = Collective(op=last.op, joined_s=last.start_s, last_rank=last.rank)
        for index in same:
            found[index] = collective
    return found


def _claims(span: Span, collective: Collective | None) -> list[Claim]:
    """The claims of a span; none for a span of no or negative length."""
    start, end = span.start_s, span.end_s
    if collective is not None:
        joined = min(max(collective.joined_s, start), end)
        waiting = _claim(Activity.STRAGGLER, span.op, start, joined, collective)
        sending = _claim(Activity.COMMUNICATION, span.op, joined, end, collective)
        return [claim for claim in (waiting, sending) if claim[1].duration_s > 0]
    if end <= start:
        return []
    if span.track == "compute":
        return [_claim(Activity.COMPUTE, span.op, start, end)]
    if span.kind == "data":
        return [_claim(Activity.DATA, span.op, start, end)]
    if span.track == "host" and span.kind == "wait":
        return [_claim(Activity.OTHER, span.op, start, end)]
    return []


def _claim(activity: Activity, op: str, start: float, end: float, collective: Collective | None = None) -> Claim:
    """Of several at once: the collective that ends first, since a rank may wait for it (then the one that was joined last); the
    wait that ends first; otherwise the span that began last, since it interrupts the others."""
    prefers, last_rank = (-start, 0.0), 0
    if collective is not None:
        last_rank = collective.last_rank
        late = collective.joined_s
        prefers = (end, -late) if activity is Activity.COMMUNICATION else (late, 0.0)
    stretch = Stretch(activity=activity, op=op, start_s=start, end_s=end, collective=collective)
    return (ORDER[activity], *prefers, op, last_rank), stretch


def _envelope(claims: list[Claim], start: float, end: float) -> tuple[Stretch, ...]:
    """The strongest claim at each instant from `start` to `end`, and "other" where there is none."""
    inside = [claim for claim in claims if claim[1].start_s < end and claim[1].end_s > start]
    coming = sorted(inside, key=lambda claim: claim[1].start_s, reverse=True)
    edges = {moment for _, stretch in inside for moment in (stretch.start_s, stretch.end_s) if start < moment < end}
    in_force: list[tuple[Strength, int, Stretch]] = []
    nothing = Stretch(activity=Activity.OTHER, op="", start_s=start, end_s=end)
    won: list[tuple[float, Stretch]] = []
    for moment in sorted(edges | {start}) if start < end else ():
        while coming and coming[-1][1].start_s <= moment:
            strength, stretch = coming.pop()
            heapq.heappush(in_force, (strength, len(coming), stretch))
        while in_force and in_force[0][2].end_s <= moment:
            heapq.heappop(in_force)
        winner = in_force[0][2] if in_force else nothing
        if not won or won[-1][1] is not winner:
            won.append((moment, winner))
    return tuple(_clipped(stretch, left, right) for (left, stretch), (right, _) in pairwise([*won, (end, nothing)]))


def _clipped(stretch: Stretch, start: float, end: float) -> Stretch:
    return Stretch(activity=stretch.activity, op=stretch.op, start_s=start, end_s=end, collective=stretch.collective)
