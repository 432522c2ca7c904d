"""What a rank's compute time is a function of: t = c · (φ + w), fitted from what was seen.

w is work (samples, or tokens), c the time of a unit of it, and φ the work that everything fixed is worth. The two are learned
apart, because they change apart: a busy neighbour or a throttled clock slows everything (c), while φ belongs to the model and
the device and stays. φ comes from pairs of observations with different work, by the median of their slopes (Theil and Sen),
which a few outliers do not move; before there are any it is 0, what DBS (arXiv 2007.11831) assumes. c is a median over what
was seen since the last change.

A change: the last few steps are all off to the same side, by more than the rank's own noise. Then everything before them is
forgotten, but not φ. One step, however slow, changes nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from workloads.split import RankCost


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity:
    """When a rank is believed to have changed."""

    steps: int = 3
    """In a row, off to the same side."""
    least: float = 0.08
    """By this share of the expected time at least."""
    spreads: float = 4.0
    """And by this many times what steps usually scatter."""
    memory: int = 32
    """Steps that are looked back on."""


_DEFAULT = Sensitivity()
_MAD_TO_SIGMA = 1.4826
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

    def observe(self, work: float, compute_s: float) -> bool:
        """Take note of a step; whether the rank has just turned out to have changed. A step without work says nothing."""
        if work <= 0 or compute_s <= 0:
            return False
        self._seen.append((work, compute_s))
        changed = self._has_changed()
        if changed:
            recent = list(self._seen)[-self._sensitivity.steps :]
            self._seen.clear()
            self._seen.extend(recent)
        self._fit_fixed_work()
        return changed

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
        return self._spread(list(self._seen))

    def predict_s(self, work: float) -> float:
        """Compute time of that much work; none takes none."""
        return self.unit_s * (self._fixed_work + work) if work > 0 else 0.0

    def cost(self, work_per_sample: float = 1.0) -> RankCost:
        """As a line over samples."""
        unit_s = self.unit_s
        return RankCost(fixed_s=unit_s * self._fixed_work, per_sample_s=unit_s * work_per_sample)

    def _unit_s(self, seen: list[tuple[float, float]]) -> float:
        return median(compute_s / (self._fixed_work + work) for work, compute_s in seen)

    def _spread(self, seen: list[tuple[float, float]]) -> float:
        unit_s = self._unit_s(seen)
        return _MAD_TO_SIGMA * median(abs(t / (unit_s * (self._fixed_work + work)) - 1) for work, t in seen)

    def _has_changed(self) -> bool:
        rule, seen = self._sensitivity, list(self._seen)
        before, recent = seen[: -rule.steps], seen[-rule.steps :]
        if len(before) < rule.steps:
            return False
        unit_s = self._unit_s(before)
        off = [compute_s / (unit_s * (self._fixed_work + work)) - 1 for work, compute_s in recent]
        bar = max(rule.least, rule.spreads * self._spread(before))
        return min(off) > bar or max(off) < -bar

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
