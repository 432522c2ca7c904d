"""Ratios: which way round, how sure, and how often equal plans are called different."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import product
from statistics import NormalDist, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.results.judge import stats
from autotune.results.judge.stats import (
    ALARM_CONFIDENCE,
    Ratio,
    bootstrap_interval,
    detectable_slowdown,
    median_distribution,
    num_warmup,
    speedup,
    unpaired_speedup,
    widened_confidence,
)

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


# --- sides from different jobs -----------------------------------------------------------------------------------------


def normal_rounds(generator: random.Random, step_s: float, count: int, noise: float = 0.01) -> list[float]:
    return [step_s * generator.gauss(1, noise) for _ in range(count)]


def test_unpaired_rounds_need_not_be_as_many_and_their_order_does_not_matter() -> None:
    ratio = unpaired_speedup([2.0, 2.2, 2.1], [1.0, 1.0, 1.0, 1.0, 1.0])
    assert ratio.value == 2.1
    assert ratio.num_rounds == 3
    assert unpaired_speedup([2.1, 2.0, 2.2], [1.0] * 5).value == ratio.value


def test_unpaired_rounds_do_not_forgive_a_drift_that_paired_ones_do() -> None:
    drift = [1.0, 5.0, 2.0, 9.0, 1.0, 3.0, 7.0, 2.0]
    before, after = [2 * shared for shared in drift], drift
    assert speedup(before, after).verdict == "faster"
    assert unpaired_speedup(before, after).verdict == "no difference"


@pytest.mark.usefixtures("few_resamples")
def test_the_unpaired_interval_covers_the_true_ratio() -> None:
    generator = random.Random(3)
    covered = 0
    for _ in range(EXPERIMENTS):
        ratio = unpaired_speedup(normal_rounds(generator, 1.05, ROUNDS), normal_rounds(generator, 1.0, ROUNDS))
        covered += ratio.low <= 1.05 <= ratio.high
    assert covered / EXPERIMENTS >= 0.88


@pytest.mark.parametrize(("before", "after"), [([], [1.0]), ([1.0], [])])
def test_an_unpaired_ratio_needs_rounds_on_both_sides(before: list[float], after: list[float]) -> None:
    with pytest.raises(ValueError, match="on each side"):
        unpaired_speedup(before, after)


def test_the_same_rounds_give_the_same_interval_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "RESAMPLES", 50)
    rounds = normal_rounds(random.Random(4), 1.0, 200)
    assert bootstrap_interval(rounds, confidence=0.9) == bootstrap_interval(rounds, confidence=0.9)
    assert bootstrap_interval(rounds, confidence=0.9, seed=1) != bootstrap_interval(rounds, confidence=0.9)
    assert unpaired_speedup(rounds, rounds) == unpaired_speedup(rounds, rounds)
    assert unpaired_speedup(rounds, rounds, seed=1) != unpaired_speedup(rounds, rounds)


def test_long_series_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "RESAMPLES", 50)
    rounds = normal_rounds(random.Random(5), 1.0, 101)
    whole = bootstrap_interval(rounds, confidence=0.9)
    monkeypatch.setattr(stats, "_CHUNK", 101 * 7)
    assert bootstrap_interval(rounds, confidence=0.9) == whole


def test_equal_sides_are_called_different_in_one_case_of_two_hundred_once_widened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The percentile interval as it is errs in some 20 of 1000 such cases."""
    monkeypatch.setattr(stats, "RESAMPLES", 3000)
    generator = random.Random(10)
    errors = {False: 0, True: 0}
    for _ in range(1000):
        before, after = normal_rounds(generator, 1.0, 10), normal_rounds(generator, 1.0, 10)
        for widened in errors:
            errors[widened] += speedup(before, after, confidence=0.995, widened=widened).verdict != "no difference"
    assert errors[True] <= 10 < errors[False]


@pytest.mark.parametrize(("num_rounds", "quantile"), [(10, 3.6897), (20, 3.1737), (1000, 2.8136)])
def test_widening_uses_students_quantile(num_rounds: int, quantile: float) -> None:
    widened = widened_confidence(0.995, num_rounds)
    z = NormalDist().inv_cdf((1 + widened) / 2)
    assert z == pytest.approx(quantile * (num_rounds / (num_rounds - 1)) ** 0.5, rel=0.01)


def test_one_round_says_nothing() -> None:
    assert widened_confidence(0.995, 1) == 1.0


# --- what noise would hide ---------------------------------------------------------------------------------------------


def test_the_detectable_slowdown_is_found_in_four_cases_of_five(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 rounds with 1 % noise on each side, slowed down by what another such pair says it would find."""
    monkeypatch.setattr(stats, "RESAMPLES", 3000)
    generator = random.Random(6)
    found = 0
    for _ in range(300):
        before, after = normal_rounds(generator, 1.0, 20), normal_rounds(generator, 1.0, 20)
        slower = 1 + detectable_slowdown(
            speedup(before, after, confidence=ALARM_CONFIDENCE), confidence=ALARM_CONFIDENCE
        )
        again, slowed = normal_rounds(generator, 1.0, 20), normal_rounds(generator, slower, 20)
        found += speedup(again, slowed, confidence=ALARM_CONFIDENCE).verdict == "slower"
    assert 0.65 <= found / 300 <= 0.93


def test_the_detectable_slowdown_manually() -> None:
    """Half-width h = 0.02807 is z_c·σ with σ = 0.01; ln(1+d) = h + 0.8416·0.01."""
    ratio = Ratio(value=1.0, low=2.718281828**-0.02807, high=2.718281828**0.02807, num_rounds=20)
    assert detectable_slowdown(ratio, confidence=0.995) == pytest.approx(0.0372, abs=2e-4)


def test_without_noise_every_slowdown_is_detectable() -> None:
    assert detectable_slowdown(speedup([1.0] * 9, [1.0] * 9), confidence=0.995) == 0.0


def test_more_rounds_find_smaller_slowdowns() -> None:
    generator = random.Random(7)
    few, many = (
        speedup(normal_rounds(generator, 1.0, count), normal_rounds(generator, 1.0, count)) for count in (8, 80)
    )
    assert detectable_slowdown(many, confidence=0.95) < detectable_slowdown(few, confidence=0.95) / 2


# --- warm-up -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps_s", "dropped"),
    [
        ([9.0, 4.0, 2.0, 1.0, 1.1, 0.9, 1.0, 1.1, 1.0, 0.9], 3),
        ([1.0, 1.1, 0.9, 1.0, 1.1, 1.0, 0.9, 1.0], 0),
        ([0.1, 1.0, 1.1, 0.9, 1.0, 1.1, 1.0, 0.9], 1),
        ([1.0, 9.0, 1.1, 0.9, 1.0, 1.1, 1.0, 0.9], 0),
        ([9.0, 8.0, 7.0, 6.0, 5.0, 1.0, 1.1, 0.9, 1.0, 1.0], 5),
        ([9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 1.1, 0.9, 1.0, 1.0], 5),
        ([5.0], 0),
        ([], 0),
        ([9.0, 1.0], 1),
    ],
    ids=[
        "slow start",
        "none",
        "fast start",
        "spike later",
        "half is the most",
        "steady late",
        "one",
        "empty",
        "two",
    ],
)
def test_leading_steps_unlike_the_second_half_are_warm_up(steps_s: list[float], dropped: int) -> None:
    assert num_warmup(steps_s) == dropped


@given(st.lists(st.floats(min_value=0.01, max_value=100), max_size=30))
def test_never_more_than_half_is_warm_up(steps_s: list[float]) -> None:
    assert 0 <= num_warmup(steps_s) <= len(steps_s) // 2


@pytest.mark.parametrize("num_rounds", [1, 2, 3, 4, 5])
def test_the_exact_distribution_of_a_median_is_that_of_all_resamples(num_rounds: int) -> None:
    values = [1.0, 1.5, 1.7, 2.9, 4.0][:num_rounds]
    counted = Counter(median(draws) for draws in product(values, repeat=num_rounds))
    found: dict[float, float] = defaultdict(float)
    for value, share in median_distribution(values):
        found[value] += share
    assert {value: pytest.approx(count / num_rounds**num_rounds) for value, count in counted.items()} == dict(found)


def test_exact_and_drawn_intervals_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [1.0 + 0.01 * (i * 7 % 11) for i in range(12)]
    exact = bootstrap_interval(values, confidence=0.9)
    monkeypatch.setattr(stats, "EXACT_ROUNDS", 0)
    assert bootstrap_interval(values, confidence=0.9) == pytest.approx(exact, abs=0.006)
