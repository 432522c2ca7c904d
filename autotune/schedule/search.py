"""The best schedule of a block graph for a given number of micro-batches, and how far from the best possible it may be.

Portfolio, then the shortest period by modulo scheduling, its repetends expanded to the real number of micro-batches, then
improvement piece by piece. The shortest period is not always the shortest makespan: 1F1B won by 2-5 % on some unequal chains, so
candidates are compared by makespan, and the answer is never worse than any member of the portfolio. Where backward can
be split, all of it is done for both graphs, whole and split.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autotune.schedule.bounds import makespan_bound_s, period_bound_s
from autotune.schedule.check import Replay, replay, require_valid
from autotune.schedule.grid import COARSE, Grid, make_grid
from autotune.schedule.improve import improve, is_small
from autotune.schedule.memory import fitting_order
from autotune.schedule.modulo import Repetend, find_repetend
from autotune.schedule.period import Period, repetend_in, shortest_period
from autotune.schedule.portfolio import Member, portfolio, split_portfolio
from autotune.schedule.solver import load
from autotune.schedule.timing import order_by, order_of, timetable
from autotune.workloads.blocks import BlockGraph, Timetable, split_backward
from autotune.workloads.errors import InfeasiblePlanError, SpecError

DEFAULT_TIME_S = 60.0
_LEAST_IMPROVING_S = 0.3
_LEAST_SOLVING_S = 3.0
"""The least time for improvement without a time limit; the second for a schedule that may be solved as a whole."""
_PERIOD_SHARE = 0.6
_SHORT_S = 1.0
"""For a repetend of low latency."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The state of a search."""

    doing: str
    seconds: float
    makespan_s: float
    makespan_bound_s: float
    period_s: float | None
    period_bound_s: float
    winner: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The schedule and its proven bounds."""

    table: Timetable
    replay: Replay
    winner: str
    """The method that made the schedule."""
    period_s: float
    """Of the best repetend, not of this schedule alone: more micro-batches approach one period each."""
    period_bound_s: float
    proven: bool
    """The period is the shortest (on its grid)."""
    grid_s: float
    """Starts of the repetend are multiples of this."""
    makespan_bound_s: float
    portfolio_s: dict[str, float]
    """The makespan of each member."""
    period_seconds: float
    """When the search for the period ended."""
    seconds: float
    """Of the whole search."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    name: str
    table: Timetable
    makespan_s: float


def search(
    graph: BlockGraph,
    num_microbatches: int,
    *,
    time_s: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Answer:
    """The best schedule found within the time; InfeasiblePlanError if one micro-batch does not fit.

    Without a time limit, improvement takes as long as everything before it, within `DEFAULT_TIME_S`.
    """
    if num_microbatches < 1:
        raise SpecError(f"the number of micro-batches is {num_microbatches}: it must be at least 1")
    load()
    return _Search(graph, num_microbatches, time_s, on_progress or _discard, clock).run()


def _discard(_progress: Progress) -> None:
    """Discards progress."""


class _Search:
    def __init__(
        self,
        graph: BlockGraph,
        num_microbatches: int,
        time_s: float | None,
        on_progress: Callable[[Progress], None],
        clock: Callable[[], float],
    ) -> None:
        self._graph, self._num = graph, num_microbatches
        self._time_s = DEFAULT_TIME_S if time_s is None else time_s
        self._is_brief = time_s is None
        self._on_progress, self._clock, self._began_s = on_progress, clock, clock()
        self._fitting = fitting_order(graph, num_microbatches)
        self._variants = [(graph, self._fitting)]
        if any(block.split for block in graph.blocks):
            self._add_split()
        self._bounds_s = [makespan_bound_s(one, num_microbatches) for one, _ in self._variants]
        self._period: Period | None = None
        self._period_bound_s = min(period_bound_s(one) for one, _ in self._variants)
        self._period_seconds = 0.0
        self._proven = False
        self._best: _Found | None = None
        self._best_of: list[_Found | None] = [None] * len(self._variants)
        self._members: dict[str, float] = {}

    def run(self) -> Answer:
        self._take_portfolio()
        periods = self._take_periods()
        for (graph, _), period in zip(self._variants, periods, strict=True):
            self._take_repetends(graph, period)
        self._improve()
        return self._answer()

    def _add_split(self) -> None:
        """Activations are held until the weight half: a split graph may not fit where the unsplit one does."""
        parts = split_backward(self._graph)
        try:
            self._variants.append((parts, fitting_order(parts, self._num)))
        except InfeasiblePlanError:
            return

    def _take_portfolio(self) -> None:
        for graph, fitting in self._variants:
            whole = graph is self._graph
            members: Iterator[Member] = (
                portfolio(graph, self._num, fitting)
                if whole
                else split_portfolio(self._graph, graph, self._num, fitting)
            )
            for member in members:
                self._members[member.name] = member.makespan_s
                self._take(member.name, member.table, member.makespan_s)
        self._report("portfolio")

    def _take_periods(self) -> list[Period]:
        periods = []
        for place, (graph, fitting) in enumerate(self._variants):
            share_s = _PERIOD_SHARE * self._left_s() / (len(self._variants) - place)
            grid = make_grid(graph, COARSE)
            period = shortest_period(
                grid, fitting, self._hint(grid, self._best_of[place]), self._until(share_s), self._on_period
            )
            periods.append(period)
        self._period = min(periods, key=lambda period: period.period_s)
        self._period_bound_s = min(period.bound_s for period in periods)
        least_s = self._period.period_s * (1 - 1e-9)
        self._proven = all(period.proven or period.bound_s >= least_s for period in periods)
        self._period_seconds = self._clock() - self._began_s
        self._report("period")
        return periods

    def _until(self, share_s: float) -> Callable[[], float]:
        """The remaining time of a share that begins now."""
        until_s = self._clock() + share_s
        return lambda: until_s - self._clock()

    def _hint(self, grid: Grid, best: _Found | None) -> Repetend | None:
        """The repetend in the middle of the best schedule so far."""
        return None if best is None else repetend_in(grid, order_of(best.table), self._num)

    def _on_period(self, period: Period) -> None:
        if self._period is None or period.period_s < self._period.period_s:
            self._period = period
        self._report("period")

    def _take_repetends(self, graph: BlockGraph, period: Period) -> None:
        """Repetends of the best period, that found first and one of low latency, at the real number of micro-batches."""
        self._expand(graph, period.repetend)
        if self._done() or self._left_s() <= 0:
            return
        limit_s = min(_SHORT_S, self._left_s() / 4)
        hint = period.repetend
        attempt = find_repetend(period.grid, hint.period, limit_s, hint=hint, short=True)
        if attempt.repetend is not None:
            self._expand(graph, attempt.repetend)

    def _expand(self, graph: BlockGraph, repetend: Repetend) -> None:
        def when(block: int, microbatch: int) -> float:
            return repetend.starts[block] + repetend.period * microbatch

        table = timetable(graph, self._num, order_by(graph, self._num, when))
        if table is not None and not (found := replay(table)).faults:
            self._take("repetend", table, found.makespan_s)

    def _improve(self) -> None:
        """Shorten the best schedule; for a small problem, solve all variants exactly."""
        assert self._best is not None
        if self._is_brief:
            taken_s = self._clock() - self._began_s
            least_s = _LEAST_SOLVING_S if is_small(self._best.table) else _LEAST_IMPROVING_S
            self._time_s = min(self._time_s, taken_s + max(taken_s, least_s))
        for place, one in enumerate(self._best_of):
            hopeless = self._bounds_s[place] >= self._best.makespan_s * (1 - 1e-9)
            if one is None or hopeless or self._left_s() <= 0:
                continue
            if one is self._best or is_small(one.table):
                found = improve(one.table, make_grid(one.table.graph), self._bounds_s[place], self._left_s)
                self._bounds_s[place] = max(self._bounds_s[place], found.bound_s)
                self._take(f"{one.name}, improved", found.table, found.table.makespan_s)
                self._report("makespan")

    def _take(self, name: str, table: Timetable, makespan_s: float) -> None:
        found = _Found(name=name, table=table, makespan_s=makespan_s)
        place = next(place for place, (graph, _) in enumerate(self._variants) if graph is table.graph)
        if _is_better(found, self._best_of[place]):
            self._best_of[place] = found
        if _is_better(found, self._best):
            self._best = found
            self._report(name)

    def _done(self) -> bool:
        assert self._best is not None
        return self._best.makespan_s <= min(self._bounds_s) * (1 + 1e-9)

    def _left_s(self) -> float:
        return self._time_s - (self._clock() - self._began_s)

    def _report(self, doing: str) -> None:
        if self._best is None:
            return
        self._on_progress(
            Progress(
                doing=doing,
                seconds=self._clock() - self._began_s,
                makespan_s=self._best.makespan_s,
                makespan_bound_s=min(self._bounds_s),
                period_s=None if self._period is None else self._period.period_s,
                period_bound_s=self._period_bound_s,
                winner=self._best.name,
            )
        )

    def _answer(self) -> Answer:
        assert self._best is not None
        assert self._period is not None
        found = require_valid(self._best.table)
        bound_s = min(*self._bounds_s, found.makespan_s)
        return Answer(
            table=self._best.table,
            replay=found,
            winner=self._best.name,
            period_s=self._period.period_s,
            period_bound_s=self._period_bound_s,
            proven=self._proven,
            grid_s=self._period.grid.unit_s,
            makespan_bound_s=bound_s,
            portfolio_s=self._members,
            period_seconds=self._period_seconds,
            seconds=self._clock() - self._began_s,
        )


def _is_better(found: _Found, than: _Found | None) -> bool:
    """Shorter; of two that take as long, the one that holds less."""
    if than is None or abs(found.makespan_s - than.makespan_s) > 1e-12 * than.makespan_s:
        return than is None or found.makespan_s < than.makespan_s
    return sum(replay(found.table).peak_memory) < sum(replay(than.table).peak_memory)
