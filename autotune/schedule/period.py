"""The shortest period: from a repetend that exists down to a bound that is proven.

A greedy repetend comes first: it takes little time and works on 32 devices, where the solver finds none. Then the analytic bound
is tried, mostly the work of the busiest device: if it is feasible, it is optimal. If it is proven infeasible, the interval
between it and the best repetend is bisected, then again on a finer grid, since the shortest period may be a fraction of the
times. Where the solver runs out of time, the search continues above, and the bound stays where it was proven.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.schedule.bounds import period_bound_s
from autotune.schedule.greedy import greedy_repetend, kept_phases
from autotune.schedule.grid import Grid
from autotune.schedule.modulo import Repetend, find_repetend, is_repetend
from autotune.schedule.solver import Outcome
from autotune.schedule.timing import Order, earliest

_FINE_STEPS = 64
"""Steps of the grid on which a period is searched."""
_AT_ONCE_SHARE = 0.4
"""Share of the time for the analytic bound."""
_KEPT_SHARE, _KEPT_S = 0.5, 3.0
"""Shares of the remaining time, and for one period, with reservations for blocks on several devices."""
_GROWTH = 1.03


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """The best repetend and its proven bound."""

    repetend: Repetend
    grid: Grid
    bound_s: float
    """No repetend with starts on the grid is shorter; less what rounding may add, if the grid is not exact."""
    proven: bool
    """There is no shorter one on the grid."""

    @property
    def period_s(self) -> float:
        return self.repetend.period * self.grid.unit_s


def shortest_period(
    grid: Grid,
    fitting: tuple[int, ...],
    hint: Repetend | None,
    left_s: Callable[[], float],
    on_progress: Callable[[Period], None],
) -> Period:
    """Search until it is proven or no time is left."""
    return _Search(grid, fitting, hint, left_s, on_progress).run()


class _Search:
    def __init__(
        self,
        grid: Grid,
        fitting: tuple[int, ...],
        hint: Repetend | None,
        left_s: Callable[[], float],
        on_progress: Callable[[Period], None],
    ) -> None:
        self._grid, self._left_s, self._on_progress = grid, left_s, on_progress
        self._least_s = period_bound_s(grid.graph)
        self._best = _alone(grid, fitting)
        if hint is not None and hint.period < self._best.period and is_repetend(grid, hint):
            self._best = hint
        self._low = max(math.ceil(self._least_s / self._grid.unit_s - 1e-6) - 1, 0)
        """The largest period that is proven infeasible."""

    def run(self) -> Period:
        self._tell()
        if (quick := greedy_repetend(self._grid, self._low, self._best.period)) is not None:
            self._best = quick
            self._tell()
        if self._best.period > self._low + 1:
            outcome = self._try(self._low + 1, _AT_ONCE_SHARE * self._left_s())
            if outcome is Outcome.UNKNOWN:
                self._climb(_KEPT_SHARE * self._left_s())
        self._halve()
        while not self._is_proven() and self._left_s() > 0 and self._refine():
            self._halve()
        return self._period()

    def _climb(self, time_s: float) -> None:
        """For large graphs: from the bound upwards, with reservations for blocks on several devices, which decouples the others.
        Proves nothing.
        """
        until_s = self._left_s() - time_s
        reservations = [phases for phases in kept_phases(self._grid) if phases]
        period = self._low + 1
        while reservations and period < self._best.period and self._left_s() > until_s:
            for phases in reservations:
                limit_s = min(_KEPT_S, self._left_s() - until_s)
                turned = _turned(self._grid, phases, period)
                if turned and self._try(period, limit_s, phases=turned) is not Outcome.UNKNOWN:
                    return
            period = max(period + 1, math.floor(period * _GROWTH))

    def _halve(self) -> None:
        skipped = self._low
        while self._best.period - skipped > 1 and self._left_s() > 0:
            middle = (skipped + self._best.period) // 2
            outcome = self._try(middle, self._left_s() / 3)
            if outcome is Outcome.UNKNOWN:
                skipped = middle
            skipped = max(skipped, self._low)

    def _try(self, period: int, time_s: float, phases: Mapping[int, int] | None = None) -> Outcome:
        attempt = find_repetend(self._grid, period, time_s, hint=self._best, phases=phases)
        if attempt.repetend is not None:
            self._best = attempt.repetend
            self._tell()
        elif attempt.outcome is Outcome.INFEASIBLE:
            self._low = max(self._low, period)
            self._tell()
        return attempt.outcome

    def _refine(self) -> bool:
        """A finer grid, if the times allow it and it can help."""
        if not self._grid.exact or self._best.period >= _FINE_STEPS or self._least_s == 0:
            return False
        factor = math.ceil(_FINE_STEPS / self._best.period)
        self._grid = self._grid.finer(factor)
        self._best, self._low = self._best.scaled(factor), self._low * factor
        return True

    def _is_proven(self) -> bool:
        return self._best.period * self._grid.unit_s <= self._least_s * (1 + 1e-9)

    def _period(self) -> Period:
        at_work = self._is_proven()
        roundings = len(self._grid.times)
        bound_s = max(self._least_s, self._grid.bound_s(self._low + 1, roundings))
        period_s = self._best.period * self._grid.unit_s
        return Period(
            repetend=self._best,
            grid=self._grid,
            bound_s=period_s if at_work else min(bound_s, period_s),
            proven=at_work or self._best.period <= self._low + 1,
        )

    def _tell(self) -> None:
        self._on_progress(self._period())


def _turned(grid: Grid, phases: Mapping[int, int], period: int) -> dict[int, int]:
    """The same reservations relative to the first block, at which a period begins; none where they do not fit into it."""
    if sum(grid.times[block] for block in phases) > period:
        return {}
    zero = phases.get(grid.graph.topological[0], 0)
    return {block: (phase - zero) % period for block, phase in phases.items()}


def _alone(grid: Grid, fitting: tuple[int, ...]) -> Repetend:
    """One micro-batch after another: a repetend that always exists."""
    graph = grid.graph
    starts = [0] * len(graph.blocks)
    free = [0] * graph.num_devices
    for block in fitting:
        devices = graph.blocks[block].devices
        starts[block] = max(
            *(free[device] for device in devices), *(starts[source] + lag for source, lag in grid.edges[block]), 0
        )
        for device in devices:
            free[device] = starts[block] + grid.times[block]
    return Repetend(period=max(*free, 1), starts=tuple(starts))


def repetend_in(grid: Grid, order: Order, num: int) -> Repetend | None:
    """The pattern in the middle of a schedule of many micro-batches: a repetend if the schedule is in steady state there."""
    graph = grid.graph
    starts = earliest(graph, grid.times, grid.edges, order)
    if starts is None or num < 3:
        return None
    middle = num // 2
    blocks = range(len(graph.blocks))
    period = max(starts[block, middle] - starts[block, middle - 1] for block in blocks)
    first = starts[graph.topological[0], middle]
    return Repetend(period=max(period, 1), starts=tuple(starts[block, middle] - first for block in blocks))
