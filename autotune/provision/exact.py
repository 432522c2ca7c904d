"""The plan of least cost, proven: branch and bound over the time of the slowest stage, on an interval programme.

For stage times up to τ, price is a sum over stages, and the best cut into stages with types is a shortest path over (layer, type). Cost is
τ · price, and price falls in steps as τ grows, so the best τ is the time of some stage on some number of units. Those are too many to try:
for a range (a, b] of τ the same programme with another weight is a lower bound of all plans in it (`compiled.completions`), which meets
the cost of the best plan as the range shrinks. Ranges whose bound is not below the best plan found are discarded; what is left when none
remains is the optimum, to a relative `GAP`.

Limits on units: prices of scarce types (Lagrange multipliers, by subgradients) strengthen the bound and mostly find the plan; where they
leave a gap, a best-first search over labels (weight and units of each type so far) solves the relaxation itself. A range is discarded for
the same reasons as without limits, so the answer is proven as well. `docs/provision.md` has the argument.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from dataclasses import dataclass, field

import numpy as np

from autotune.provision import compiled
from autotune.provision.assignment import arrays, best_rate
from autotune.provision.problem import Floats, Ints, Layer, Problem, ResourceType

GAP = 1e-9
"""Two costs nearer than this, relatively, are one."""
_STEPS = 64
"""Of the units of an assignment that a bound has found: its other units belong to other ranges."""
_ROUNDS = 12
"""Subgradient steps per range."""
_NARROW = 1.02
"""Ranges within this ratio are worth a search over labels; wider ones are halved first."""
_LABELS = 300_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Times of the slowest stage, with a lower bound for all plans in it."""

    low_s: float
    high_s: float
    bound: float
    extra: Floats = field(repr=False)
    """Prices of scarce types that the bound was found with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimum:
    """The best assignment found, and the bound: proven if they meet."""

    assignment: Ints | None
    """None: no plan has stages of at most the time asked for."""
    slowest_s: float
    rate: float
    """Price per hour x slowest stage."""
    bound: float
    proven: bool
    num_ranges: int


class Search:
    """Ranges still open, and the best plan so far: the cheapest, or with `most_rate` the fastest of at most that rate."""

    def __init__(self, problem: Problem, longest_s: float, *, time_s: float, most_rate: float = math.inf) -> None:
        self._problem, self._arrays = problem, arrays(problem)
        self._limit, self._limited = problem.tables.limit, np.isfinite(problem.tables.limit)
        self._longest_s, self._until = longest_s, time.perf_counter() + time_s
        self._most_rate = most_rate
        self._best: Ints | None = None
        self._rate, self._slowest_s = math.inf, math.inf
        self._open: list[tuple[float, int, Range]] = []
        self._count = itertools.count()
        self._left = math.inf
        """The least bound of ranges that were given up."""

    def run(self) -> Optimum:
        """Halve the most promising range until none can hold a better plan."""
        self._add(0.0, self._longest_s, np.zeros(len(self._limit)))
        while self._open:
            _, _, chosen = heapq.heappop(self._open)
            if not self._may_be_better(chosen.low_s, chosen.bound):
                continue
            if time.perf_counter() > self._until:
                self._left = min(self._left, chosen.bound, *(entry[2].bound for entry in self._open))
                break
            low, high = chosen.low_s, min(chosen.high_s, self._highest_s)
            middle = math.sqrt(low * high) if low > 0 else high / 2
            self._add(middle, high, chosen.extra)
            self._add(low, middle, chosen.extra)
        return Optimum(
            assignment=self._best,
            slowest_s=self._slowest_s,
            rate=self._rate,
            bound=min(self._left, self._rate),
            proven=self._left == math.inf,
            num_ranges=next(self._count),
        )

    @property
    def _cutoff(self) -> float:
        """Plans of at least this rate are not better."""
        return self._rate * (1 - GAP) if self._most_rate == math.inf else self._most_rate * (1 + compiled.SAME)

    @property
    def _highest_s(self) -> float:
        """The fastest plan: stages that take longer are not better."""
        return math.inf if self._most_rate == math.inf else self._slowest_s

    def _may_be_better(self, low_s: float, bound: float) -> bool:
        return bound < self._cutoff and low_s < self._highest_s * (1 - GAP)

    def _add(self, low_s: float, high_s: float, extra: Floats) -> None:
        """Bound a range, and keep it if something in it may be better."""
        if self._limited.any():
            bound, extra = self._limited_bound(low_s, high_s, extra)
        else:
            bound = self._relaxed(low_s, high_s, extra)[0]
        if not self._may_be_better(low_s, bound):
            return
        if high_s <= low_s * (1 + 2 * compiled.SAME):
            self._left = min(self._left, bound)
            return
        first = bound if self._most_rate == math.inf else low_s
        kept = Range(low_s=low_s, high_s=high_s, bound=bound, extra=extra)
        heapq.heappush(self._open, (first, next(self._count), kept))

    def _relaxed(self, low_s: float, high_s: float, extra: Floats) -> tuple[float, Ints, Floats]:
        """The interval programme without limits; its assignment is tried as a plan."""
        best, ends, other = compiled.completions(self._arrays, low_s, high_s, extra)
        assignment = np.zeros(self._problem.num_layers, np.int64)
        weight = compiled.follow(best, ends, assignment)
        if weight < math.inf:
            self._try(assignment, high_s)
        return weight, assignment, other

    def _try(self, assignment: Ints, high_s: float) -> None:
        rate, slowest = best_rate(
            self._problem, assignment, longest_s=high_s, most_rate=self._most_rate, most_steps=_STEPS
        )
        is_better = rate < self._rate if self._most_rate == math.inf else slowest < self._slowest_s
        if is_better:
            self._best, self._rate, self._slowest_s = assignment.copy(), rate, slowest

    def _limited_bound(self, low_s: float, high_s: float, extra: Floats) -> tuple[float, Floats]:
        """The best bound that prices of scarce types give; for a narrow range, that of the search over labels."""
        best, best_extra, best_other = -math.inf, extra, None
        step = 1.0
        for _ in range(_ROUNDS):
            weight, assignment, other = self._relaxed(low_s, high_s, extra)
            if weight == math.inf:
                return math.inf, extra
            bound = weight - float(extra[self._limited] @ self._limit[self._limited])
            if bound > best:
                best, best_extra, best_other = bound, extra, other
            else:
                step /= 2
            if bound >= self._cutoff:
                return bound, extra
            excess = np.where(self._limited, self._used(assignment, high_s) - self._limit, 0.0)
            over = np.where((excess < 0) & (extra <= 0), 0.0, excess)
            if not over.any():
                return bound, extra
            target = self._cutoff if self._cutoff < math.inf else 1.5 * abs(bound) + 1e-12
            extra = np.maximum(extra + step * max(target - bound, 1e-3 * abs(target)) / float(over @ over) * over, 0.0)
        if best_other is None or high_s > low_s * _NARROW:
            return best, best_extra
        return max(best, self._labelled(low_s, high_s, best_extra, best_other)), best_extra

    def _used(self, assignment: Ints, high_s: float) -> Floats:
        """Units of each type that stages of at most `high_s` need."""
        count = self._problem.num_layers
        kinds, compute, transfer = np.zeros(count, np.int64), np.zeros(count), np.zeros(count)
        stages = compiled.stages_of(self._arrays, assignment, kinds, compute, transfer)
        used, tables = np.zeros(len(self._limit)), self._problem.tables
        for kind, work, sent in zip(kinds[:stages], compute[:stages], transfer[:stages], strict=True):
            used[kind] += compiled.units_for(
                work, sent, tables.alpha[kind], tables.beta[kind], tables.cap[kind], high_s
            )
        return used

    def _labelled(self, low_s: float, high_s: float, extra: Floats, other: Floats) -> float:
        assignment = np.zeros(self._problem.num_layers, np.int64)
        outcome, weight, _ = compiled.labels(
            self._arrays, self._limit, low_s, high_s, extra, other, self._cutoff, _LABELS, assignment
        )
        if outcome == compiled.FOUND:
            self._try(assignment, high_s)
        return -math.inf if outcome == compiled.TOO_MANY else weight


def cheapest(problem: Problem, *, longest_s: float | None = None, time_s: float = 60.0) -> Optimum:
    """The plan of least cost with stages of at most `longest_s`: by default what the floor on throughput allows."""
    return Search(problem, problem.slowest_s if longest_s is None else longest_s, time_s=time_s).run()


def fastest(problem: Problem, *, most_rate: float = math.inf, time_s: float = 60.0) -> Optimum:
    """The plan of highest throughput within the limits whose price x slowest stage is at most `most_rate`; no floor."""
    tables = problem.tables
    units = np.where(np.isinf(tables.limit), tables.cap * problem.num_layers, tables.limit)
    highest = problem.longest_stage_s * float(tables.price @ units) + 1.0
    return Search(problem, problem.longest_stage_s, time_s=time_s, most_rate=min(most_rate, highest)).run()


def load_compiled(*, limited: bool) -> None:
    """Load or compile the functions of a search, which takes up to seconds the first time, before it is timed."""
    kind = ResourceType(name="any", price_per_hour=1.0, limit=1 if limited else None)
    layer = Layer(name="any", compute_s=(1.0,), transfer_s=(0.0,))
    problem = Problem(types=(kind,), layers=(layer,), examples=1.0)
    cheapest(problem)
    if limited:
        one, other, assignment = np.ones(1), np.zeros((2, 1)), np.zeros(1, np.int64)
        compiled.labels(arrays(problem), one, 1.0, 1.0, one, other, 2.0, 2, assignment)
