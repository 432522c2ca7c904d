"""Ratios: which way round, how sure, and how often equal plans are called different."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results import stats
from results.stats import Ratio, bootstrap_interval, speedup

ROUNDS = 12
EXPERIMENTS = 150


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "RESAMPLES", 400)


def noisy_rounds(generator: random.Random, baseline_s: float, contender_s: float) -> tuple[list[float], list[float]]:
    """Rounds with noise of their own on each side, and a drift of the machine that hits both."""
    drift = [1 + 0.3 * generator.random() for _ in range(ROUNDS)]
    sides = [[step_s * shared * generator.gauss(1, 0.02) for shared in drift] for step_s in (baseline_s, contender_s)]
    return sides[0], sides[1]


def test_a_contender_that_takes_half_the_time_is_two_times_faster() -> None:
    ratio = speedup([2.0] * 8, [1.0] * 8)
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 2.0, 2.0)
    assert ratio.verdict == "faster"


def test_a_contender_that_takes_twice_the_time_is_slower() -> None:
    ratio = speedup([1.0] * 8, [2.0] * 8)
    assert ratio.value == 0.5
    assert ratio.verdict == "slower"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.01, 1.2, "faster"), (0.8, 0.99, "slower"), (0.9, 1.1, "no difference"), (1.0, 1.2, "no difference")],
)
def test_an_interval_that_holds_one_is_no_difference(low: float, high: float, verdict: str) -> None:
    assert Ratio(value=1.05, low=low, high=high, num_rounds=10).verdict == verdict


def test_ratios_are_taken_within_rounds_so_shared_drift_cancels() -> None:
    slow_minutes = [1.0, 5.0, 2.0, 9.0, 1.0, 3.0]
    ratio = speedup([2 * drift for drift in slow_minutes], slow_minutes)
    assert ratio.low == ratio.high == pytest.approx(2.0)


@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize("truth", [1.0, 1.05, 2.3])
def test_the_interval_covers_the_true_ratio(truth: float) -> None:
    generator = random.Random(7)
    covered = 0
    for _ in range(EXPERIMENTS):
        ratio = speedup(*noisy_rounds(generator, truth, 1.0))
        covered += ratio.low <= truth <= ratio.high
    assert covered / EXPERIMENTS >= 0.88


@pytest.mark.usefixtures("few_resamples")
def test_equal_plans_are_rarely_called_different() -> None:
    generator = random.Random(8)
    verdicts = [speedup(*noisy_rounds(generator, 1.0, 1.0)).verdict for _ in range(EXPERIMENTS)]
    assert verdicts.count("no difference") / EXPERIMENTS >= 0.88
    assert set(verdicts) == {"no difference", "faster", "slower"}, "both kinds of false alarm should occur now and then"


@pytest.mark.usefixtures("few_resamples")
def test_a_difference_above_the_noise_is_found() -> None:
    generator = random.Random(9)
    verdicts = [speedup(*noisy_rounds(generator, 1.1, 1.0)).verdict for _ in range(EXPERIMENTS)]
    assert verdicts.count("faster") / EXPERIMENTS >= 0.95


def test_more_confidence_widens_the_interval() -> None:
    values = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
    narrow_low, narrow_high = bootstrap_interval(values, confidence=0.5)
    wide_low, wide_high = bootstrap_interval(values, confidence=0.99)
    assert wide_low < narrow_low <= narrow_high < wide_high


@given(st.lists(st.floats(min_value=0.01, max_value=100), min_size=1, max_size=8))
def test_the_interval_holds_the_median_and_repeats(times: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats, "RESAMPLES", 200)
        ratio = speedup([1.0] * len(times), times)
        assert ratio.low <= ratio.value <= ratio.high
        assert ratio == speedup([1.0] * len(times), times)


@pytest.mark.parametrize(("baseline_s", "contender_s"), [([], []), ([1.0], [1.0, 2.0])])
def test_rounds_must_pair_up(baseline_s: list[float], contender_s: list[float]) -> None:
    with pytest.raises(ValueError, match=r"at least one round|argument 2"):
        speedup(baseline_s, contender_s)
