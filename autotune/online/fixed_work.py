"""φ: the fixed part of a step's compute time, in units of work. It is estimated whenever a rank's work changes.

With t = c·(φ + w), the ratio r of the times of two amounts of work w and w' gives φ = (w' - r·w)/(r - 1). Its standard
error follows from the noise of step times: σ_φ = σ_r·(φ + w)²/|w' - w|. A large change of work therefore gives a precise
estimate, a small one does not. Estimates are averaged with weights 1/σ²; older ones decay. A ratio that no φ from 0 to a
few steps' work explains has another cause and is discarded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

SMALL = 0.05
"""A change of work by less than this share of the larger amount is not used."""
_MOST = 2.0
"""Upper limit of φ, as a multiple of the work of a step."""
_SPREADS = 3.0
"""An estimate below zero by up to this many standard errors counts as zero."""
_DECAY = 0.9
"""Factor of the weight of earlier estimates with each new one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedWork:
    """An estimate of φ and its weight, 1/σ²."""

    work: float = 0.0
    weight: float = 0.0

    def with_change(self, change: WorkChange, noise: float) -> FixedWork:
        """This estimate combined with that of a change of work."""
        found = change.estimate(self.work, noise)
        if found is None:
            return self
        before = _DECAY * self.weight
        weight = before + found.weight
        return FixedWork(work=(before * self.work + found.weight * found.work) / weight, weight=weight)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkChange:
    """A change of a rank's work: the expected step time before it, and the step times since."""

    before: float
    before_s: float
    num_before: int
    after: float
    after_s: tuple[float, ...] = ()

    def estimate(self, prior: float, noise: float) -> FixedWork | None:
        """φ from this change only; None if no φ explains it."""
        ratio = median(self.after_s) / self.before_s
        if (ratio > 1) is not (self.before < self.after) or ratio == 1:
            return None
        solved = (self.after - ratio * self.before) / (ratio - 1)
        error = noise * math.sqrt(1 / self.num_before + 1 / len(self.after_s))
        error *= (max(solved, prior, 0.0) + self.before) ** 2 / abs(self.after - self.before)
        if not -_SPREADS * error <= solved <= _MOST * max(self.before, self.after):
            return None
        return FixedWork(work=max(solved, 0.0), weight=1 / max(error, 1e-9) ** 2)


def differ(one: float, other: float) -> bool:
    """Whether two amounts of work differ enough for an estimate."""
    return abs(one - other) >= SMALL * max(one, other)
