"""The fixed part of a step, from changes of a rank's work."""

from __future__ import annotations

import random

import pytest

from autotune.online.fixed_work import FixedWork, WorkChange, differ

NOISE = 0.01


def change_of(
    before: float, after: float, fixed: float, *, noise: float = 0.0, draw: random.Random | None = None
) -> WorkChange:
    """Steps of c = 0.1 s a unit, before and after the work has changed."""
    draw = draw or random.Random(0)
    after_s = tuple(0.1 * (fixed + after) * draw.gauss(1, noise) for _ in range(3))
    return WorkChange(before=before, before_s=0.1 * (fixed + before), num_before=10, after=after, after_s=after_s)


@pytest.mark.parametrize(("before", "after"), [(10.0, 12.0), (12.0, 10.0), (30.0, 5.0)])
@pytest.mark.parametrize("fixed", [0.0, 2.0, 8.0])
def test_one_change_suffices_without_noise(before: float, after: float, fixed: float) -> None:
    assert FixedWork().with_change(change_of(before, after, fixed), NOISE).work == pytest.approx(fixed, abs=1e-9)


def test_a_large_change_of_work_counts_for_more_than_a_small_one() -> None:
    small, large = (change_of(10.0, after, 2.0).estimate(0.0, NOISE) for after in (11.0, 20.0))
    assert small is not None
    assert large is not None
    assert large.weight == pytest.approx(100 * small.weight)


def test_many_noisy_changes_converge() -> None:
    draw, estimate = random.Random(3), FixedWork()
    for number in range(40):
        estimate = estimate.with_change(
            change_of(10.0, 12.0 if number % 2 else 8.0, 2.0, noise=NOISE, draw=draw), NOISE
        )
    assert estimate.work == pytest.approx(2.0, abs=0.5)


@pytest.mark.parametrize("seconds", [0.5, 0.99, 2.5])
def test_a_ratio_that_no_fixed_work_explains_is_discarded(seconds: float) -> None:
    """More work that takes less time, or far more than in proportion: the rank itself has changed."""
    estimate = FixedWork(work=1.0, weight=1.0)
    odd = WorkChange(before=10.0, before_s=1.0, num_before=10, after=12.0, after_s=(seconds,))
    assert estimate.with_change(odd, NOISE) is estimate


def test_a_little_below_zero_is_zero() -> None:
    slightly = WorkChange(before=10.0, before_s=1.0, num_before=10, after=12.0, after_s=(1.201,))
    assert FixedWork().with_change(slightly, NOISE).work == 0.0


def test_a_small_difference_of_work_is_not_used() -> None:
    assert differ(10.0, 11.0)
    assert not differ(100.0, 104.0)
