"""Breakdown of a step: every instant of every rank has exactly one category.

Per rank, from its first span to its last: computing (with or without concurrent communication), loading data, exposed
communication, waiting for a rank that has not joined a collective yet, and the rest. In addition, the communication
that was hidden behind computing. Exposed communication and overlap are defined as in Holistic Trace Analysis (Meta). The
separation of straggler delay from link time is ours, and needs all ranks on one clock.

Left out: the layer of an interval (the spans of a timeline have it), and pipelines, whose idle time is due to the schedule
rather than to a collective.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields

from autotune.profilers.activity import Activities, Activity, Stretch, checked_window, is_collective
from autotune.profilers.queueing import Queueing, queueing
from autotune.profilers.timeline import Span, Timeline

LEAST_SHARE = 0.005
"""Smaller costs would be printed as 0 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Seconds by category. The first five sum to the wall time; the others overlap with them."""

    compute_s: float = 0.0
    data_s: float = 0.0
    exposed_s: float = 0.0
    """Communication in flight on all its ranks while this one neither computes nor loads data."""
    straggler_s: float = 0.0
    """The same, but some rank has not joined yet."""
    other_s: float = 0.0
    other_wait_s: float = 0.0
    """The part of `other_s` in which the host was blocked on gradients and no collective was recorded."""
    overlapped_s: float = 0.0
    """Computing while a collective is in flight."""
    communication_s: float = 0.0
    """Some collective is in flight, joined by all or not."""
    queue_s: float = 0.0
    """Some gradients are ready but not yet sent."""

    @property
    def wall_s(self) -> float:
        return self.compute_s + self.data_s + self.exposed_s + self.straggler_s + self.other_s

    @property
    def overlap_share(self) -> float | None:
        """The share of communication that is hidden behind computing, 0 to 1; None without communication."""
        return self.overlapped_s / self.communication_s if self.communication_s > 0 else None

    def shares(self) -> dict[Activity, float]:
        """The five parts of the wall time, 0 to 1 each; all 0 where there is no time."""
        seconds = (self.compute_s, self.data_s, self.exposed_s, self.straggler_s, self.other_s)
        return {kind: part / (self.wall_s or 1.0) for kind, part in zip(Activity, seconds, strict=True)}


@dataclass(frozen=True, kw_only=True, slots=True)
class RankBreakdown(Parts):
    """One rank's step."""

    rank: int
    start_s: float
    end_s: float
    waited_for_s: dict[int, float] = field(default_factory=dict)
    """Straggler waits by the rank that joined last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """All ranks' step."""

    ranks: tuple[RankBreakdown, ...] = ()
    step_s: float = 0.0
    """From the first rank's start to the last one's end, or the given window."""
    clock_error_s: float = 0.0
    queueing: Queueing = field(default_factory=Queueing)
    """Why gradients that were ready were not sent at once."""

    @property
    def overall(self) -> Parts:
        """Sums over ranks; the shares of it weigh a rank by its wall time."""
        names = [part.name for part in fields(Parts)]
        return Parts(**{name: sum(getattr(rank, name) for rank in self.ranks) for name in names})

    def mean_shares(self) -> dict[Activity, float]:
        """The mean over ranks of each rank's shares: every rank weighs the same."""
        each = [rank.shares() for rank in self.ranks]
        return {kind: sum(shares[kind] for shares in each) / max(len(each), 1) for kind in Activity}


def break_down(timeline: Timeline, *, window: tuple[float, float] | None = None) -> Breakdown:
    """Each rank over its own extent, or all over one window."""
    activities = Activities(timeline)
    start, end = checked_window(window) if window is not None else activities.whole()
    ranks = (_rank_breakdown(activities, rank, window or activities.extent(rank)) for rank in activities.ranks)
    return Breakdown(
        ranks=tuple(ranks), step_s=end - start, clock_error_s=timeline.clock_error_s, queueing=queueing(timeline)
    )


def largest_costs(breakdown: Breakdown, count: int = 3) -> tuple[str, ...]:
    """The costs of the step in words, the largest first.

    Computing is no cost. Waits below the error of the clocks are not listed."""
    step_s = breakdown.step_s
    costs = [cost for rank in breakdown.ranks for cost in _costs(rank, breakdown.clock_error_s)]
    ranked = sorted((cost for cost in costs if cost[0] >= LEAST_SHARE * step_s > 0), key=lambda cost: -cost[0])
    return tuple(text.format(share=f"{100 * seconds / step_s:.0f} %") for seconds, text in ranked[:count])


def _costs(rank: RankBreakdown, clock_error_s: float) -> Iterator[tuple[float, str]]:
    name = f"rank {rank.rank}"
    for other, seconds in rank.waited_for_s.items():
        if seconds > clock_error_s:
            yield seconds, f"{name} waits {{share}} of the step for rank {other}'s gradients"
    yield rank.exposed_s, f"{name} spends {{share}} of the step on communication that nothing hides"
    yield rank.data_s, f"{name} loads data for {{share}} of the step"
    yield rank.other_wait_s, f"{name} is blocked for {{share}} of the step with no collective in flight"
    yield rank.other_s - rank.other_wait_s, f"{name} does nothing that was recorded for {{share}} of the step"


def _rank_breakdown(activities: Activities, rank: int, window: tuple[float, float]) -> RankBreakdown:
    stretches = activities.stretches(rank, window)
    spans = activities.spans(rank)
    computing = union((span for span in spans if span.track == "compute"), window)
    sending = union(filter(is_collective, spans), window)
    queueing = union((span for span in spans if span.track == "comm" and span.kind == "queue"), window)
    waited_for_s: dict[int, float] = defaultdict(float)
    for stretch in stretches:
        if stretch.activity is Activity.STRAGGLER and stretch.collective is not None:
            waited_for_s[stretch.collective.last_rank] += stretch.duration_s
    return RankBreakdown(
        rank=rank,
        start_s=window[0],
        end_s=window[1],
        compute_s=_total_s(stretches, Activity.COMPUTE),
        data_s=_total_s(stretches, Activity.DATA),
        exposed_s=_total_s(stretches, Activity.COMMUNICATION),
        straggler_s=_total_s(stretches, Activity.STRAGGLER),
        other_s=_total_s(stretches, Activity.OTHER),
        other_wait_s=_total_s((stretch for stretch in stretches if stretch.op), Activity.OTHER),
        overlapped_s=_common_s(computing, sending),
        communication_s=sum(end - start for start, end in sending),
        queue_s=sum(end - start for start, end in queueing),
        waited_for_s=dict(waited_for_s),
    )


def _total_s(stretches: Iterable[Stretch], activity: Activity) -> float:
    return sum(stretch.duration_s for stretch in stretches if stretch.activity is activity)


def union(spans: Iterable[Span], window: tuple[float, float]) -> list[tuple[float, float]]:
    """The time that any of the spans covers, as intervals in order that do not touch."""
    merged: list[tuple[float, float]] = []
    clipped = ((max(span.start_s, window[0]), min(span.end_s, window[1])) for span in spans)
    for start, end in sorted(interval for interval in clipped if interval[0] < interval[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _common_s(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> float:
    """How long two unions cover the same time: at each step, drop the interval that ends first."""
    total_s, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        (start, end), (other_start, other_end) = first[i], second[j]
        total_s += max(min(end, other_end) - max(start, other_start), 0.0)
        i, j = (i + 1, j) if end < other_end else (i, j + 1)
    return total_s
