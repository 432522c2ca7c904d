"""What a rank's compute time is a function of: t = c · (φ + w), fitted from what was seen.

w is work (samples, or tokens), c the time of a unit of it, and φ the work that everything fixed is worth. The two are learned
apart, because they change apart: a busy neighbour or a throttled clock slows everything (c), while φ belongs to the model and
the device and stays. φ comes from pairs of observations with different work, by the median of their slopes (Theil and Sen),
which a few outliers do not move; before there are any it is 0, what DBS (arXiv 2007.11831) assumes. c is a median over what
was seen since the last change.

A change: the last steps are all off to the same side, by more than the rank's own noise; the more they are off, the fewer it
takes. Then everything before them is forgotten, but not φ, and not how much the rank scatters. A single step that is far off
is believed as well, because to wait for a second one costs a slow step; whether that pays is for others to judge
(`batch_controller`).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from workloads.split import RankCost


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity:
    """When a rank is believed to have changed."""

    least: tuple[float, ...] = (0.25, 0.08, 0.02)
    """One step, two in a row, or three: off to the same side by this share of the expected time at least."""
    spreads: tuple[float, ...] = (10.0, 6.0, 4.0)
    """And by this many times what steps usually scatter."""
    memory: int = 10
    """Steps that are looked back on."""

    @property
    def steps(self) -> int:
        """The most that a change takes to be believed."""
        return len(self.least)


_DEFAULT = Sensitivity()
_MAD_TO_SIGMA = 1.4826
_LEAST_SCATTER, _FIRST_SCATTER = 0.003, 0.02
"""At least so much is expected of any rank, and so much of one that has not shown it yet."""
_SMALL, _LARGE = 0.05, 0.2
"""Work must differ by a share of the larger between these for its slope to say more than noise."""
_CLEAR = 6.0
"""By this many times the noise, if that is known and in between."""


class RankCostModel:
    """One rank, as far as it has been seen."""

    def __init__(self, sensitivity: Sensitivity = _DEFAULT) -> None:
        self._sensitivity = sensitivity
        self._seen: deque[tuple[float, float]] = deque(maxlen=sensitivity.memory)
        self._fixed_work = 0.0
        self._scatter = _FIRST_SCATTER

    def observe(self, work: float, compute_s: float) -> bool:
        """Take note of a step; whether the rank has just turned out to have changed. A step without work says nothing."""
        if work <= 0 or compute_s <= 0:
            return False
        self._seen.append((work, compute_s))
        believed = self._steps_that_tell()
        if believed:
            recent = list(self._seen)[-believed:]
            self._seen.clear()
            self._seen.extend(recent)
        elif len(self._seen) > self._sensitivity.steps:
            self._scatter = max(self._spread(list(self._seen)), _LEAST_SCATTER)
        self._fit_fixed_work()
        return believed > 0

    @property
    def num_steps(self) -> int:
        """Seen since the last change."""
        return len(self._seen)

    @property
    def unit_s(self) -> float:
        """c: the time of a unit of work."""
        return self._unit_s(list(self._seen))

    @property
    def spread(self) -> float:
        """How much steps scatter about what is expected, as a share of it (a robust standard deviation)."""
        return self._scatter

    def predict_s(self, work: float) -> float:
        """Compute time of that much work; none takes none."""
        return self.unit_s * (self._fixed_work + work) if work > 0 else 0.0

    def at_work(self, compute_s: float, done: float, other: float) -> float:
        """What a step that took `compute_s` for the work `done` would have taken for other work."""
        if other <= 0:
            return 0.0
        return compute_s * (self._fixed_work + other) / (self._fixed_work + done) if done > 0 else self.predict_s(other)

    def cost(self, work_per_sample: float = 1.0, unit_s: float | None = None) -> RankCost:
        """As a line over samples, for a unit that takes what it does now, or as given."""
        unit_s = self.unit_s if unit_s is None else unit_s
        return RankCost(fixed_s=unit_s * self._fixed_work, per_sample_s=unit_s * work_per_sample)

    def units_of(self, work: float, compute_s: float) -> float:
        """c, as this one step has it."""
        return compute_s / (self._fixed_work + work)

    def _unit_s(self, seen: list[tuple[float, float]]) -> float:
        return median(compute_s / (self._fixed_work + work) for work, compute_s in seen)

    def _spread(self, seen: list[tuple[float, float]]) -> float:
        unit_s = self._unit_s(seen)
        return _MAD_TO_SIGMA * median(abs(t / (unit_s * (self._fixed_work + work)) - 1) for work, t in seen)

    def _steps_that_tell(self) -> int:
        """How many of the last steps show a change; 0: they show none."""
        rule, seen = self._sensitivity, list(self._seen)
        for count, (least, spreads) in enumerate(zip(rule.least, rule.spreads, strict=True), start=1):
            before, recent = seen[:-count], seen[-count:]
            if not before:
                break
            unit_s = self._unit_s(before)
            off = [math.log(t / (unit_s * (self._fixed_work + work))) for work, t in recent]
            bar = max(least, spreads * self._scatter)
            if min(off) > bar or max(off) < -bar:
                return count
        return 0

    def _telling_difference(self) -> float:
        now = self._seen[-1][0]
        alike = [(work, compute_s) for work, compute_s in self._seen if work == now]
        if len(alike) < self._sensitivity.steps:
            return _LARGE
        return min(max(_CLEAR * self._spread(alike), _SMALL), _LARGE)

    def _fit_fixed_work(self) -> None:
        """From the line t = a + c·w through pairs of steps: φ = a/c, where there are enough that differ."""
        now = self._seen[-1][0]
        bar = self._telling_difference()
        others = sum(_differ(work, now, bar) for work, _ in self._seen)
        if others < self._sensitivity.steps:  # one outlier among them would make the line
            return
        slopes = [
            (late - early) / (more - less)
            for (less, early), (more, late) in combinations(self._seen, 2)
            if _differ(more, less, bar)
        ]
        if (slope := median(slopes)) <= 0:
            return
        fixed_s = median(compute_s - slope * work for work, compute_s in self._seen)
        self._fixed_work = max(fixed_s / slope, 0.0)


def _differ(one: float, other: float, bar: float) -> bool:
    return abs(one - other) >= bar * max(one, other)
