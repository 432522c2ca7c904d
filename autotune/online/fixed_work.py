"""φ: the work that everything fixed in a step is worth, learned whenever a rank's work changes.

Under t = c·(φ + w), two amounts of work w and w' of one rank take times whose ratio r gives φ = (w' - r·w)/(r - 1). How far off
that may be follows from how much steps scatter: σ_φ = σ_r·(φ + w)²/|w' - w|, so that a small move says little, a large
one much. Estimates are added up by their weights 1/σ², older ones counting less and less. Where no φ from 0 up to a few steps' work
explains a ratio, something else has happened, and nothing is learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

SMALL = 0.05
"""Work that differs by less than this share of the larger says nothing."""
_MOST = 2.0
"""Times the work of a step: more than that is no fixed part that anybody should believe in."""
_SPREADS = 3.0
"""An estimate may be below zero by so many of its own errors, and then is zero."""
_KEPT = 0.9
"""What an estimate's weight is multiplied by with each that follows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedWork:
    """φ, and its weight."""

    work: float = 0.0
    weight: float = 0.0

    def with_turn(self, turn: Turn, scatter: float) -> FixedWork:
        """What is known together with what a change of work has shown."""
        found = turn.estimate(self.work, scatter)
        if found is None:
            return self
        before = _KEPT * self.weight
        weight = before + found.weight
        return FixedWork(work=(before * self.work + found.weight * found.work) / weight, weight=weight)


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A rank's work became another: what a step took before, as expected of several, and since."""

    before: float
    before_s: float
    num_before: int
    after: float
    after_s: tuple[float, ...] = ()

    def estimate(self, known: float, scatter: float) -> FixedWork | None:
        """φ by this turn alone; None where no φ explains it."""
        ratio = median(self.after_s) / self.before_s
        if (ratio > 1) is not (self.before < self.after) or ratio == 1:
            return None
        solved = (self.after - ratio * self.before) / (ratio - 1)
        error = scatter * math.sqrt(1 / self.num_before + 1 / len(self.after_s))
        error *= (max(solved, known, 0.0) + self.before) ** 2 / abs(self.after - self.before)
        if not -_SPREADS * error <= solved <= _MOST * max(self.before, self.after):
            return None
        return FixedWork(work=max(solved, 0.0), weight=1 / max(error, 1e-9) ** 2)


def differ(one: float, other: float) -> bool:
    """Whether two amounts of work are far enough apart to tell anything."""
    return abs(one - other) >= SMALL * max(one, other)
