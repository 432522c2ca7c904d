"""A straight line through measured points: fixed + slope · x, neither below zero.

Of all lines through two of the points (or one and the origin, or one and level) the one with the least sum of
|log(fitted / measured)|. A ratio, so that a small message counts as much for the latency as a large one for the
bandwidth; its logarithm, so that twice too slow and twice too fast count alike; a plain sum instead of squares, so that
one disturbed point does not bend the line. There are few points, so all such lines are tried: no solver, no start value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log

Point = tuple[float, float]
_LEAST_SHARE = 1e-6
"""The least share of the largest point that a point counts as: the log-ratio of a point at zero is infinite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """y = fixed + slope · x, and its errors at the points."""

    fixed: float
    slope: float
    errors: tuple[float, ...] = ()
    """(predicted − measured) / measured of each point, in the order of the points."""

    def at(self, x: float) -> float:
        return self.fixed + self.slope * x

    @property
    def worst_error(self) -> float:
        return max(map(abs, self.errors), default=0.0)


def fit_line(points: Sequence[Point]) -> Line:
    """The best line through points whose y are not negative."""
    if not points:
        raise ValueError("a line needs at least one point")
    if any(y < 0 for _, y in points):
        raise ValueError(f"points {list(points)} include a negative time or size")
    scales = _scales(points)
    best = min(_candidates(points), key=lambda line: (_total_error(line, points, scales), line.fixed))
    errors = tuple((best.at(x) - y) / scale for (x, y), scale in zip(points, scales, strict=True))
    return Line(fixed=best.fixed, slope=best.slope, errors=errors)


def _candidates(points: Sequence[Point]) -> Iterator[Line]:
    for x, y in points:
        yield Line(fixed=y, slope=0.0)
        if x > 0:
            yield Line(fixed=0.0, slope=y / x)
    for (x1, y1), (x2, y2) in combinations(points, 2):
        if x1 != x2:
            slope = (y2 - y1) / (x2 - x1)
            fixed = y1 - slope * x1
            if slope >= 0 and fixed >= 0:
                yield Line(fixed=fixed, slope=slope)


def _total_error(line: Line, points: Sequence[Point], scales: Sequence[float]) -> float:
    least = max(scales) * _LEAST_SHARE
    return sum(abs(log(max(line.at(x), least) / scale)) for (x, _), scale in zip(points, scales, strict=True))


def _scales(points: Sequence[Point]) -> list[float]:
    """The reference of each point: its y, but never zero."""
    largest = max(y for _, y in points)
    return [max(y, largest * _LEAST_SHARE) or 1.0 for _, y in points]
