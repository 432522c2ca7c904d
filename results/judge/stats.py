"""Ratios with intervals: from rounds that alternate in one job, or from separate jobs; and what noise would hide.

Rounds of A and B alternate in one job, so slow minutes of the machine hit both; the ratio is taken within each round
and the median over rounds is reported with a percentile-bootstrap interval. An interval that spans 1 is no difference.
Rounds of separate jobs have no partner: the ratio is that of the two medians, and each side is resampled by itself.
Few rounds are resampled exactly; the rest is vectorised, and seeded: the same rounds give the same interval everywhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import comb, exp, log, sqrt
from statistics import NormalDist, correlation, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EXACT_ROUNDS = 40
"""Up to so many rounds every resample's median is counted, which is quicker than drawing, and exact."""
RESAMPLES = 10_000
_CHUNK = 2_000_000
"""Values drawn at once, so that long series do not fill the memory."""
MIN_ROUNDS = 6
"""Of identical plans, so many are called different with 1 to 5 rounds: 100, 49, 26, 11, 5 %; from 6 on about 5-9 %."""
ALARM_CONFIDENCE = 0.995
"""Where a verdict raises an alarm: at 95 % a hundred comparisons of equal things raise five."""
FASTER, SLOWER, NO_DIFFERENCE, TOO_FEW = "faster", "slower", "no difference", "too few rounds"
POWER = 0.8
_UNLIKE = 5.0
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """How many times faster, with its interval."""

    value: float
    low: float
    high: float
    num_rounds: int

    @property
    def verdict(self) -> str:
        """The words "faster", "slower", "no difference" (beyond noise) or "too few rounds"."""
        return judged(self)


def judged(
    ratio: Ratio, *, fewest: int = MIN_ROUNDS, drift: float = 0.0, words: tuple[str, str] = (FASTER, SLOWER)
) -> str:
    """The verdict of a ratio: one of `words`, NO_DIFFERENCE, or TOO_FEW where there are fewer rounds than `fewest`.

    `drift`: by how much the two sides may differ for no reason.
    """
    if ratio.num_rounds < fewest:
        return TOO_FEW
    if ratio.low > 1 + drift:
        return words[0]
    return words[1] if ratio.high < 1 / (1 + drift) else NO_DIFFERENCE


def with_remedy(verdict: str) -> str:
    """A verdict in a sentence: where rounds were too few, how many there should be."""
    return f"{verdict} ({MIN_ROUNDS} or more are needed)" if verdict == TOO_FEW else verdict


def speedup(
    baseline_s: Sequence[float],
    contender_s: Sequence[float],
    *,
    confidence: float = 0.95,
    widened: bool = False,
    seed: int = 0,
) -> Ratio:
    """Throughput of the contender over that of the baseline, round by round; `widened`: see `widened_confidence`."""
    ratios = [base / ours for base, ours in zip(baseline_s, contender_s, strict=True)]
    if not ratios:
        raise ValueError("a ratio needs at least one round")
    level = widened_confidence(confidence, len(ratios)) if widened else confidence
    low, high = bootstrap_interval(ratios, confidence=level, seed=seed)
    return Ratio(value=median(ratios), low=low, high=high, num_rounds=len(ratios))


def unpaired_speedup(
    baseline_s: Sequence[float], contender_s: Sequence[float], *, confidence: float = 0.95, seed: int = 0
) -> Ratio:
    """Throughput of the contender over that of the baseline, where the rounds of the two have nothing to do with each other."""
    if not baseline_s or not contender_s:
        raise ValueError("a ratio needs at least one round on each side")
    generator = _generator(seed)
    ratios = _medians(baseline_s, generator) / _medians(contender_s, generator)
    low, high = _middle(ratios, confidence)
    value = median(baseline_s) / median(contender_s)
    return Ratio(value=value, low=low, high=high, num_rounds=min(len(baseline_s), len(contender_s)))


def bootstrap_interval(values: Sequence[float], *, confidence: float, seed: int = 0) -> tuple[float, float]:
    """Percentile-bootstrap interval of the median: of few rounds exactly, of many by drawing."""
    if len(values) <= EXACT_ROUNDS:
        points = median_distribution(values)
        tail = (1 - confidence) / 2
        return _quantile(points, tail), _quantile(points[::-1], tail)
    return _middle(_medians(values, _generator(seed)), confidence)


def median_distribution(values: Sequence[float]) -> list[tuple[float, float]]:
    """Every value that the median of a resample can take, in order, with its probability.

    With x_1 ≤ … ≤ x_n, a draw is at most x_i with probability i/n. For odd n the median is the m-th smallest draw,
    m = (n+1)/2, which is at most x_i when at least m draws are. For even n it is the mean of the m-th and the next,
    m = n/2: they are x_i and x_j, i < j, when m draws are at most x_i, the largest of them being x_i, and the other m at
    least x_j, the smallest of them being x_j.
    """
    ordered, n = sorted(values), len(values)
    m = (n + 1) // 2
    at_most = [sum(comb(n, k) * (i / n) ** k * (1 - i / n) ** (n - k) for k in range(m, n + 1)) for i in range(n + 1)]
    alone = [at_most[i + 1] - at_most[i] for i in range(n)]
    if n % 2:
        return list(zip(ordered, alone, strict=True))
    points = []
    for i in range(n):
        below = ((i + 1) / n) ** m - (i / n) ** m
        pairs = [(j, comb(n, m) * below * (((n - j) / n) ** m - ((n - j - 1) / n) ** m)) for j in range(i + 1, n)]
        points += [((ordered[i] + ordered[j]) / 2, share) for j, share in pairs]
        points.append((ordered[i], alone[i] - sum(share for _, share in pairs)))
    return sorted(points)


def _quantile(points: Sequence[tuple[float, float]], tail: float) -> float:
    """The first value, from this end, with more than `tail` of the probability up to it."""
    reached = accumulate(share for _, share in points)
    return next((value for (value, _), sum_ in zip(points, reached, strict=True) if sum_ > tail), points[-1][0])


def widened_confidence(confidence: float, num_rounds: int) -> float:
    """The confidence to request of a percentile bootstrap of few rounds, so that it errs no more often than `confidence` allows.

    Percentile intervals of n rounds are too narrow: at 99.5 % those of 10 rounds miss the truth in 2 cases of 100, of 20
    in 1. Replacing the normal quantile by sqrt(n/(n-1))·t(n-1) mends that: the "expanded percentile interval" of
    T. Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician 69 (2015). Student's quantile is
    taken from its expansion in 1/(n-1) (Abramowitz and Stegun 26.7.5), good to 1 % from 8 rounds on. Where two sides are
    resampled by themselves, this is not needed: those intervals err in 3 to 5 cases of 1000 as they are.
    """
    if num_rounds < 2:
        return 1.0
    normal, free = NormalDist(), num_rounds - 1
    z = normal.inv_cdf((1 + confidence) / 2)
    student = (
        z
        + (z**3 + z) / (4 * free)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    )
    return 2 * normal.cdf(sqrt(num_rounds / free) * student) - 1


def detectable_slowdown(ratio: Ratio, *, confidence: float, power: float = POWER) -> float:
    """The smallest true slow-down (0.05: 5 % more time) that rounds as noisy as these find with that power.

    An alarm needs the whole interval below 1. Its half-width in logarithms is h = z_c·σ, σ being the standard error of
    the log ratio. A slow-down d moves the estimate by ln(1+d), and the alarm goes off with probability
    Φ((ln(1+d) - h)/σ). Setting that to the power gives ln(1+d) = h + z_p·σ = h·(1 + z_p/z_c).
    """
    half = (log(ratio.high) - log(ratio.low)) / 2
    normal = NormalDist()
    return exp(half * (1 + normal.inv_cdf(power) / normal.inv_cdf((1 + confidence) / 2))) - 1


def num_warmup(steps_s: Sequence[float]) -> int:
    """How many leading steps are still warming up; at most half of them.

    The second half of the series defines a normal step: its median, and 1.4826·MAD for a standard deviation that
    outliers cannot inflate. Leading steps more than 5 of those away, slower or faster, are warm-up; the first that is
    not ends it.
    """
    kept = len(steps_s) // 2
    usual = steps_s[kept:]
    if kept == 0:
        return 0
    centre = median(usual)
    limit = _UNLIKE * _MAD_TO_SIGMA * median(abs(step - centre) for step in usual)
    return next((index for index in range(kept) if abs(steps_s[index] - centre) <= limit), kept)


def _generator(seed: int) -> np.random.Generator:
    import numpy as np  # noqa: PLC0415 - reports start faster without it

    return np.random.default_rng(seed)


def _medians(values: Sequence[float], generator: np.random.Generator) -> NDArray[np.float64]:
    """The medians of RESAMPLES samples drawn from the values with replacement."""
    import numpy as np  # noqa: PLC0415

    given = np.asarray(values, dtype=np.float64)
    rows = max(1, _CHUNK // given.size)
    parts = [
        np.median(given[generator.integers(given.size, size=(min(rows, RESAMPLES - done), given.size))], axis=1)
        for done in range(0, RESAMPLES, rows)
    ]
    return np.concatenate(parts)


def _middle(estimates: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    """What is left when the same share is cut off at both ends."""
    estimates.sort()
    cut = int((1 - confidence) / 2 * estimates.size)
    return float(estimates[cut]), float(estimates[-1 - cut])


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation, equal values sharing their mean rank; 0 where one side is all alike."""
    a, b = _mean_ranks(first), _mean_ranks(second)
    if len(set(a)) < 2 or len(set(b)) < 2:
        return 0.0
    return correlation(a, b)


def _mean_ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [(bisect_left(order, value) + bisect_right(order, value) - 1) / 2 for value in values]
