"""Ratios with intervals, from interleaved rounds.

Rounds of A and B alternate in one job, so slow minutes of the machine hit both; the ratio is taken within each round
and the median over rounds is reported with a percentile-bootstrap interval. An interval that spans 1 is no difference.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

RESAMPLES = 2000
MIN_ROUNDS = 6
"""Of identical plans, so many are called different with 1 to 5 rounds: 100, 49, 26, 11, 5 %; from 6 on about 5-9 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """How many times faster, with its interval."""

    value: float
    low: float
    high: float
    num_rounds: int

    @property
    def verdict(self) -> str:
        """The words "faster", "slower" or "no difference" (beyond noise); few rounds prove nothing, see MIN_ROUNDS."""
        if self.num_rounds < MIN_ROUNDS:
            return "no difference"
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "no difference"


def speedup(
    baseline_s: Sequence[float], contender_s: Sequence[float], *, confidence: float = 0.95, seed: int = 0
) -> Ratio:
    """Throughput of the contender over that of the baseline, round by round."""
    ratios = [base / ours for base, ours in zip(baseline_s, contender_s, strict=True)]
    if not ratios:
        raise ValueError("a ratio needs at least one round")
    low, high = bootstrap_interval(ratios, confidence=confidence, seed=seed)
    return Ratio(value=median(ratios), low=low, high=high, num_rounds=len(ratios))


def bootstrap_interval(values: Sequence[float], *, confidence: float, seed: int = 0) -> tuple[float, float]:
    """Percentile-bootstrap interval of the median."""
    generator = random.Random(seed)  # noqa: S311 - statistics, not secrets
    medians = sorted(median(generator.choices(values, k=len(values))) for _ in range(RESAMPLES))
    tail = (1 - confidence) / 2
    return medians[int(tail * RESAMPLES)], medians[min(int((1 - tail) * RESAMPLES), RESAMPLES - 1)]
