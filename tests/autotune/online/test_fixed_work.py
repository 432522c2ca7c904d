"""The work that everything fixed in a step is worth, from changes of a rank's work."""

from __future__ import annotations

import random

import pytest

from autotune.online.fixed_work import FixedWork, Turn, differ

SCATTER = 0.01


def turn(before: float, after: float, fixed: float, *, noise: float = 0.0, draw: random.Random | None = None) -> Turn:
    """Steps of c = 0.1 s a unit, before and after the work has changed."""
    draw = draw or random.Random(0)
    after_s = tuple(0.1 * (fixed + after) * draw.gauss(1, noise) for _ in range(3))
    return Turn(before=before, before_s=0.1 * (fixed + before), num_before=10, after=after, after_s=after_s)


@pytest.mark.parametrize(("before", "after"), [(10.0, 12.0), (12.0, 10.0), (30.0, 5.0)])
@pytest.mark.parametrize("fixed", [0.0, 2.0, 8.0])
def test_one_turn_tells_it_where_there_is_no_noise(before: float, after: float, fixed: float) -> None:
    assert FixedWork().with_turn(turn(before, after, fixed), SCATTER).work == pytest.approx(fixed, abs=1e-9)


def test_a_large_change_of_work_counts_for_more_than_a_small_one() -> None:
    small, large = (turn(10.0, after, 2.0).estimate(0.0, SCATTER) for after in (11.0, 20.0))
    assert small is not None
    assert large is not None
    assert large.weight == pytest.approx(100 * small.weight)


def test_many_turns_under_noise_are_near_it() -> None:
    draw, known = random.Random(3), FixedWork()
    for number in range(40):
        known = known.with_turn(turn(10.0, 12.0 if number % 2 else 8.0, 2.0, noise=SCATTER, draw=draw), SCATTER)
    assert known.work == pytest.approx(2.0, abs=0.5)


@pytest.mark.parametrize("seconds", [0.5, 0.99, 2.5])
def test_what_no_fixed_work_explains_teaches_nothing(seconds: float) -> None:
    """More work that takes less time, or far more than in proportion: the rank itself has changed."""
    known = FixedWork(work=1.0, weight=1.0)
    odd = Turn(before=10.0, before_s=1.0, num_before=10, after=12.0, after_s=(seconds,))
    assert known.with_turn(odd, SCATTER) is known


def test_a_little_below_zero_is_zero() -> None:
    slightly = Turn(before=10.0, before_s=1.0, num_before=10, after=12.0, after_s=(1.201,))
    assert FixedWork().with_turn(slightly, SCATTER).work == 0.0


def test_what_differs_by_little_is_no_other_work() -> None:
    assert differ(10.0, 11.0)
    assert not differ(100.0, 104.0)
