"""Lines through points: exact where the points lie on one, unmoved by one that does not, never below zero."""

from __future__ import annotations

import random
from itertools import product
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.profilers.fit import Line, fit_line

SIZES = [4.0, 512.0, 2048.0, 8192.0, 32768.0, 131072.0, 524288.0, 2097152.0, 8388608.0]


def on_line(fixed: float, slope: float, xs: list[float] = SIZES) -> list[tuple[float, float]]:
    return [(x, fixed + slope * x) for x in xs]


@pytest.mark.parametrize("fixed", [0.0, 50e-6, 5e-3])
@pytest.mark.parametrize("slope", [0.0, 1 / 125e6, 1 / 25e6])
def test_points_on_a_line_give_that_line(fixed: float, slope: float) -> None:
    line = fit_line(on_line(fixed, slope))
    assert (line.fixed, line.slope) == pytest.approx((fixed, slope), abs=1e-15)
    assert line.worst_error == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("index", range(len(SIZES)))
@pytest.mark.parametrize("factor", [0.2, 5.0, 50.0])
def test_one_disturbed_point_moves_nothing_and_shows_as_the_worst_error(index: int, factor: float) -> None:
    points = on_line(200e-6, 1 / 125e6)
    x, y = points[index]
    points[index] = (x, y * factor)
    line = fit_line(points)
    assert (line.fixed, line.slope) == pytest.approx((200e-6, 1 / 125e6), rel=1e-9)
    assert line.worst_error == pytest.approx(abs(1 / factor - 1))


def test_small_messages_decide_the_latency_and_large_ones_the_bandwidth() -> None:
    """Middle sizes that slip through a token bucket in no time would bend a plain least-squares line."""
    points = on_line(100e-6, 1 / 25e6)
    for index in (4, 5):
        points[index] = (points[index][0], 120e-6)
    line = fit_line(points)
    assert line.fixed == pytest.approx(100e-6, rel=0.01)
    assert 1 / line.slope == pytest.approx(25e6, rel=0.01)


def test_noise_of_a_few_percent_moves_the_line_by_a_few_percent() -> None:
    generator = random.Random(0)
    for _ in range(50):
        noisy = [(x, y * generator.uniform(0.97, 1.03)) for x, y in on_line(300e-6, 1 / 125e6)]
        line = fit_line(noisy)
        assert line.fixed == pytest.approx(300e-6, rel=0.05)
        assert line.slope == pytest.approx(1 / 125e6, rel=0.05)
        assert line.worst_error < 0.08


def test_neither_part_is_ever_negative() -> None:
    falling = fit_line([(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)])
    assert (falling.slope, falling.fixed >= 0) == (0.0, True)
    steep = fit_line([(1.0, 1.0), (2.0, 4.0), (3.0, 9.0)])
    assert steep.fixed == 0.0
    assert steep.slope > 0


@given(
    st.lists(
        st.tuples(st.integers(1, 9).map(float), st.integers(1, 99).map(float)),
        min_size=1,
        max_size=6,
        unique_by=lambda point: point[0],
    )
)
def test_no_line_of_a_fine_grid_is_much_better(points: list[tuple[float, float]]) -> None:
    """A best line need not pass through two points; one that does is never far behind it."""

    def total(line: Line) -> float:
        return sum(abs(log(max(line.at(x), 1e-4) / y)) for x, y in points)

    best = total(fit_line(points))
    grid = [100 * step / 40 for step in range(41)]
    assert all(best <= 1.1 * total(Line(fixed=a, slope=b)) + 1e-9 for a, b in product(grid, grid))


def test_a_single_size_cannot_tell_fixed_from_slope() -> None:
    line = fit_line([(8.0, 2.0)])
    assert (line.fixed, line.slope, line.worst_error) == (0.0, 0.25, 0.0)


def test_an_op_that_takes_no_time_costs_nothing() -> None:
    line = fit_line([(4.0, 0.0), (8.0, 0.0)])
    assert (line.fixed, line.slope, line.errors) == (0.0, 0.0, (0.0, 0.0))


def test_errors_are_signed_shares_of_what_was_measured() -> None:
    assert fit_line([(1.0, 2.0), (2.0, 4.0), (4.0, 16.0)]).errors == pytest.approx((0.0, 0.0, -0.5))


@pytest.mark.parametrize("points", [[], [(1.0, -0.1)]])
def test_what_is_no_measurement_is_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="point"):
        fit_line(points)
