"""A cost model of one rank's compute time, t = c · (φ + w), with change detection.

w is work (samples, or tokens), c the time of a unit of work, and φ the fixed part of a step in units of work. c and φ are
estimated separately: a busy neighbour or a throttled clock changes c, while φ belongs to the model and the device. φ is
estimated whenever the rank's work changes (`fixed_work`); before that it is 0, as in DBS (arXiv 2007.11831). c is the
median over the steps since the last change.

A change is detected when the last steps all deviate to the same side by more than the rank's noise; a larger deviation
needs fewer steps. Earlier steps are then discarded; φ and the noise are kept. One step can suffice, because waiting for a
second one costs a slow step. The threshold for one step depends on the other possible causes:
- a much *shorter* step is always a faster rank;
- a longer step may be an outlier, so it must exceed the recent outlier steps, or a quarter of the expected time;
- ranks often change together: if another rank has changed in the same step, a lower threshold holds (`reconsider`).
If the next step shows that a single step was an outlier, the discarded steps are restored. Whether following a change
pays off is decided in `batch_controller`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from autotune.online.fixed_work import FixedWork, WorkChange, differ
from autotune.workloads.split import RankCost


@dataclass(frozen=True, kw_only=True, slots=True)
class Threshold:
    """The deviation from which a step counts as changed."""

    least: float
    """Share of the expected time."""
    spreads: float
    """Multiple of the rank's noise."""

    def over(self, noise: float) -> float:
        """The threshold for a rank with this noise."""
        return max(self.least, self.spreads * noise)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity:
    """Thresholds of the change detection."""

    least: tuple[float, ...] = (0.25, 0.03, 0.02)
    """Deviation of one, two or three consecutive steps, as a share of the expected time …"""
    spreads: tuple[float, ...] = (10.0, 6.0, 4.0)
    """… and as a multiple of the rank's noise."""
    single: Threshold = field(default_factory=lambda: Threshold(least=0.05, spreads=8.0))
    """One longer step, of a rank with at least `calm` steps; it must also exceed recent outliers by `beyond_outliers`."""
    beyond_outliers: float = 1.5
    calm: int = 12
    outlier_memory: int = 100
    faster: Threshold = field(default_factory=lambda: Threshold(least=0.04, spreads=6.0))
    """One shorter step."""
    together: Threshold = field(default_factory=lambda: Threshold(least=0.03, spreads=4.0))
    """One step in which another rank has changed."""
    history: int = 10
    """Steps that the estimate of c uses."""

    @property
    def steps(self) -> int:
        """The most steps that the detection of a change takes."""
        return len(self.least)


_DEFAULT = Sensitivity()
Seen = tuple[float, float]
"""Work, and its compute time in seconds."""
_MAD_TO_SIGMA = 1.4826
_LEAST_NOISE, _INITIAL_NOISE = 0.003, 0.02
"""Lower limit of a rank's noise, and its value before it is measured."""


class RankCostModel:
    """The cost model of one rank."""

    def __init__(self, sensitivity: Sensitivity = _DEFAULT) -> None:
        self._sensitivity = sensitivity
        self._seen: deque[Seen] = deque(maxlen=sensitivity.history)
        self._confirmed = FixedWork()
        """φ from all changes of work except a recent one."""
        self._work_change: WorkChange | None = None
        """The last change of work, while its steps are collected."""
        self._fixed_work = 0.0
        """φ, including the steps since the last change of work."""
        self._noise = _INITIAL_NOISE
        self._before: list[Seen] = []
        """The steps before a change detected from one step, until the next step confirms it."""
        self._num_observed = 0
        self._outliers: deque[tuple[int, float]] = deque()
        """Outlier steps: index and deviation."""

    def observe(self, work: float, compute_s: float) -> bool:
        """Add a step; returns whether it shows a change of the rank. A step without work is ignored."""
        if work <= 0 or compute_s <= 0:
            return False
        self._num_observed += 1
        self._note_work_change(work, compute_s)
        self._seen.append((work, compute_s))
        if self._before:
            before, self._before = self._before, []
            if self._was_outlier(before):
                return True
        units_s = self._units_s(self._seen)
        num_changed = self._num_steps_of_change(units_s)
        if num_changed:
            self._discard_all_but(num_changed)
        elif len(units_s) > self._sensitivity.steps:
            self._noise = max(_spread(units_s), _LEAST_NOISE)
            self._note_outlier(units_s)
        return num_changed > 0

    def reconsider(self) -> bool:
        """Apply the lower threshold to the last step, in which another rank has changed; returns whether this one has, too."""
        threshold = self._sensitivity.together.over(self._noise)
        if len(self._seen) < 2 or abs(_deviations(self._units_s(self._seen), 1)[0]) <= threshold:
            return False
        self._discard_all_but(1)
        return True

    def _discard_all_but(self, count: int) -> None:
        self._work_change, self._fixed_work = None, self._confirmed.work  # the rank changed, not φ
        seen = list(self._seen)
        self._before = seen[:-1] if count == 1 else []
        self._seen.clear()
        self._seen.extend(seen[-count:])

    def _was_outlier(self, before: list[Seen]) -> bool:
        """Whether the step after a detected change is like those before it: then the discarded steps are restored."""
        slow, last = _deviations(self._units_s([*before, *self._seen]), 2)
        if abs(last) > self._sensitivity.together.over(self._noise):
            return False
        self._add_outlier(abs(slow))
        steps = [*before, self._seen[-1]]
        self._seen.clear()
        self._seen.extend(steps)
        return True

    def _note_outlier(self, units_s: list[float]) -> None:
        """Record the step before the last if it deviated without being detected as a change."""
        previous, last = _deviations(units_s, 2)
        if abs(previous) > self._sensitivity.together.over(self._noise) and abs(last) < abs(previous) / 2:
            self._add_outlier(abs(previous))

    def _add_outlier(self, deviation: float) -> None:
        self._outliers.append((self._num_observed, deviation))

    def _single_threshold(self) -> float:
        """The deviation from which one longer step is a change."""
        rule = self._sensitivity
        while self._outliers and self._outliers[0][0] < self._num_observed - rule.outlier_memory:
            self._outliers.popleft()
        upper = max(rule.least[0], rule.spreads[0] * self._noise)
        if self._num_observed <= rule.calm:
            return upper
        outlier = max((deviation for _, deviation in self._outliers), default=0.0)
        return min(max(rule.single.over(self._noise), rule.beyond_outliers * outlier), upper)

    @property
    def num_steps(self) -> int:
        """Steps since the last change."""
        return len(self._seen)

    @property
    def unit_s(self) -> float:
        """c: the time of a unit of work."""
        return _median(self._units_s(self._seen))

    @property
    def spread(self) -> float:
        """Relative noise of step times: a robust standard deviation."""
        return self._noise

    def predict_s(self, work: float) -> float:
        """Compute time of an amount of work; 0 without work."""
        return self.unit_s * (self._fixed_work + work) if work > 0 else 0.0

    def at_work(self, compute_s: float, done: float, other: float) -> float:
        """The time for other work of a step that took `compute_s` for the work `done`."""
        if other <= 0:
            return 0.0
        return compute_s * (self._fixed_work + other) / (self._fixed_work + done) if done > 0 else self.predict_s(other)

    def cost(self, work_per_sample: float = 1.0, unit_s: float | None = None) -> RankCost:
        """The cost as a line over samples, with the current time of a unit or the given one."""
        unit_s = self.unit_s if unit_s is None else unit_s
        return RankCost(fixed_s=unit_s * self._fixed_work, per_sample_s=unit_s * work_per_sample)

    def units_of(self, work: float, compute_s: float) -> float:
        """c of one step."""
        return compute_s / (self._fixed_work + work)

    def _note_work_change(self, work: float, compute_s: float) -> None:
        """After a change of work, attribute the change of the step time to φ as far as that explains it."""
        if self._seen and work != self._seen[-1][0]:
            self._confirm_work_change()
            before = self._seen[-1][0]
            if differ(work, before):
                self._work_change = WorkChange(
                    before=before, before_s=self.predict_s(before), num_before=len(self._seen), after=work
                )
        if self._work_change is None:
            return
        self._work_change = replace(self._work_change, after_s=(*self._work_change.after_s, compute_s))
        self._fixed_work = self._confirmed.with_change(self._work_change, self._noise).work
        if len(self._work_change.after_s) == self._sensitivity.steps:
            self._confirm_work_change()

    def _confirm_work_change(self) -> None:
        if self._work_change is not None:
            self._confirmed, self._work_change = self._confirmed.with_change(self._work_change, self._noise), None
        self._fixed_work = self._confirmed.work

    def _units_s(self, seen: Iterable[Seen]) -> list[float]:
        return [self.units_of(work, compute_s) for work, compute_s in seen]

    def _num_steps_of_change(self, units_s: list[float]) -> int:
        """How many of the last steps show a change; 0 if there is none."""
        rule = self._sensitivity
        for count in range(1, min(rule.steps, len(units_s) - 1) + 1):
            deviations = _deviations(units_s, count)
            slower = faster = max(rule.least[count - 1], rule.spreads[count - 1] * self._noise)
            if count == 1:
                slower, faster = self._single_threshold(), rule.faster.over(self._noise)
            if min(deviations) > slower or max(deviations) < -faster:
                return count
        return 0


def _deviations(units_s: list[float], count: int) -> list[float]:
    """Log deviation of each of the last steps from the median of those before them."""
    expected = _median(units_s[:-count])
    return [math.log(unit_s / expected) for unit_s in units_s[-count:]]


def _spread(units_s: list[float]) -> float:
    unit_s = _median(units_s)
    return _MAD_TO_SIGMA * _median([abs(one / unit_s - 1) for one in units_s])


def _median(values: list[float]) -> float:
    """The median; faster than `statistics.median` for a few values, and called dozens of times per step."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
