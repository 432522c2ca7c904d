"""Splits: the sum is exact, bounds are kept, and `balanced` is as good as trying every split."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.workloads.errors import AutotuneError, SpecError
from autotune.workloads.split import Bounds, RankCost, balanced, bounds, even, proportional

NUM_CASES = 100_000
NUM_SMALL_CASES = 1_500
STEADY = settings(derandomize=True, deadline=None)
MIXED4 = (1.0, 1 / 1.5, 1 / 2, 1 / 4)


def assert_valid(samples: Sequence[int], total: int, limits: Bounds) -> None:
    assert sum(samples) == total
    assert len(samples) == len(limits.caps)
    assert all(type(count) is int for count in samples)
    assert all(low <= count <= high for low, count, high in zip(limits.minimums, samples, limits.caps, strict=True)), (
        f"{samples} breaks {limits}"
    )


def every_split(total: int, limits: Bounds) -> Iterator[tuple[int, ...]]:
    ranges = [range(low, high + 1) for low, high in zip(limits.minimums, limits.caps, strict=True)]
    return (split for split in itertools.product(*ranges) if sum(split) == total)


def slowest_s(costs: Sequence[RankCost], samples: Sequence[int]) -> float:
    return max(cost.fixed_s + cost.per_sample_s * count for cost, count in zip(costs, samples, strict=True))


# --- random cases ----------------------------------------------------------------------------------------------------


def random_weights(generator: random.Random, num_ranks: int) -> list[float]:
    """One of: like speeds, ratios of up to 1e60, zeros among them, all zero, all equal."""
    kind = generator.randrange(5)
    if kind == 0:
        return [generator.uniform(0.1, 1.0) for _ in range(num_ranks)]
    if kind == 1:
        return [10.0 ** generator.uniform(-30, 30) for _ in range(num_ranks)]
    if kind == 2:
        return [generator.choice((0.0, 0.0, generator.random())) for _ in range(num_ranks)]
    if kind == 3:
        return [0.0] * num_ranks
    return [generator.choice((1.0, 3.0, 1 / 3))] * num_ranks


def random_bounds(generator: random.Random, num_ranks: int) -> tuple[Bounds, int]:
    """Bounds and a total they allow: loose, tight, unequal, or with a total at the very edge."""
    scale = generator.choice((1, 5, 64, 10_000))
    minimums = [generator.choice((0, 1, 1, generator.randint(0, scale))) for _ in range(num_ranks)]
    room = generator.choice((0, 1, scale, 10 * scale))
    caps = [low + generator.randint(0, room) for low in minimums]
    low, high = sum(minimums), sum(caps)
    total = generator.choice((low, high, min(low + 1, high), max(high - 1, low), generator.randint(low, high)))
    return Bounds(minimums=tuple(minimums), caps=tuple(caps)), total


def test_a_hundred_thousand_random_splits_sum_to_the_batch_and_keep_their_bounds() -> None:
    generator = random.Random(20_260_101)
    for _ in range(NUM_CASES):
        num_ranks = generator.randint(1, 8)
        limits, total = random_bounds(generator, num_ranks)
        weights = random_weights(generator, num_ranks)
        samples = proportional(weights, total, limits)
        if sum(samples) != total or not all(map(_within, limits.minimums, samples, limits.caps)):
            pytest.fail(f"proportional({weights}, {total}, {limits}) = {samples}")


def _within(low: int, count: int, high: int) -> bool:
    return low <= count <= high


def test_twenty_thousand_random_balanced_splits_sum_to_the_batch_and_keep_their_bounds() -> None:
    generator = random.Random(7)
    for _ in range(20_000):
        num_ranks = generator.randint(1, 8)
        limits, total = random_bounds(generator, num_ranks)
        if total > 2_000:  # one sample at a time: large batches only cost time
            continue
        costs = [
            RankCost(fixed_s=generator.choice((0.0, generator.random())), per_sample_s=weight)
            for weight in random_weights(generator, num_ranks)
        ]
        assert_valid(balanced(costs, total, limits), total, limits)


@pytest.mark.parametrize("ratio", [1e-300, 1e-12, 1e12, 1e300])
def test_a_huge_ratio_of_weights_leaves_the_slow_rank_its_minimum(ratio: float) -> None:
    samples = proportional([1.0, ratio], 64, bounds(2, 64))
    assert sorted(samples) == [1, 63]


def test_the_largest_weights_a_float_can_hold_still_make_a_split() -> None:
    biggest = 1.7e308
    assert proportional([biggest, biggest, biggest / 2], 50, bounds(3, 50)) == (20, 20, 10)


def test_the_smallest_weights_a_float_can_hold_still_make_a_split() -> None:
    assert proportional([5e-324, 5e-324], 64, bounds(2, 64)) == (32, 32)


def test_a_batch_larger_than_floats_can_count_is_still_split_exactly() -> None:
    limits = Bounds(minimums=(0, 0), caps=(2**59, 2**59 + 1))
    assert proportional([1.0, 1.0], 2**60 + 1, limits) == (2**59, 2**59 + 1)


def test_a_rank_of_weight_zero_gets_its_minimum_and_no_more() -> None:
    assert proportional([0.0, 1.0, 1.0], 64, bounds(3, 64, minimum=2)) == (2, 31, 31)


def test_weights_that_are_all_zero_mean_an_even_split() -> None:
    assert proportional([0.0] * 4, 64, bounds(4, 64)) == (16, 16, 16, 16)


def test_what_the_weighted_ranks_cannot_hold_goes_to_ranks_of_weight_zero() -> None:
    limits = Bounds(minimums=(0, 0, 0), caps=(10, 100, 100))
    assert proportional([1.0, 0.0, 0.0], 64, limits) == (10, 27, 27)


def test_what_a_cap_takes_away_is_shared_out_by_weight() -> None:
    limits = Bounds(minimums=(1, 1, 1), caps=(10, 100, 100))
    assert proportional([4.0, 2.0, 1.0], 70, limits) == (10, 40, 20)


def test_a_minimum_above_the_share_is_paid_for_by_the_others_in_proportion() -> None:
    limits = Bounds(minimums=(30, 0, 0), caps=(100, 100, 100))
    assert proportional([1.0, 2.0, 1.0], 60, limits) == (30, 20, 10)


@pytest.mark.parametrize("total", [3, 4, 29, 30])
def test_a_total_at_the_edge_of_the_bounds_is_split(total: int) -> None:
    limits = Bounds(minimums=(1, 1, 1), caps=(10, 10, 10))
    assert_valid(proportional([1.0, 5.0, 25.0], total, limits), total, limits)
    assert_valid(balanced([RankCost(fixed_s=0.0, per_sample_s=1.0)] * 3, total, limits), total, limits)


# --- what a proportional split means -----------------------------------------------------------------------------------


def test_speeds_of_mixed4_are_rounded_by_largest_remainders() -> None:
    """64/2.4167 · (1, 2/3, 1/2, 1/4) = 26.48, 17.66, 13.24, 6.62: the two largest remainders get the two left over."""
    assert proportional(MIXED4, 64, bounds(4, 64)) == (26, 18, 13, 7)


def test_largest_remainders_matter_where_rounding_each_share_would_lose_samples() -> None:
    """DBS's public code rounds 12.8 five times to 13: 65 samples of 64."""
    assert proportional([1.0] * 5, 64, bounds(5, 64)) == (13, 13, 13, 13, 12)


@STEADY
@given(
    weights=st.lists(st.integers(0, 1000), min_size=1, max_size=6).filter(any),
    total=st.integers(0, 500),
)
def test_without_bounds_every_share_is_within_one_of_its_exact_value(weights: list[int], total: int) -> None:
    limits = bounds(len(weights), total, minimum=0)
    samples = proportional([float(weight) for weight in weights], total, limits)
    assert_valid(samples, total, limits)
    for count, weight in zip(samples, weights, strict=True):
        exact = total * weight / sum(weights)
        assert abs(count - exact) < 1 + 1e-9


@st.composite
def cases(draw: st.DrawFn, *, most_ranks: int = 6, most_samples: int = 40) -> tuple[Bounds, int]:
    pairs = draw(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 12)), min_size=1, max_size=most_ranks))
    limits = Bounds(minimums=tuple(low for low, _ in pairs), caps=tuple(low + room for low, room in pairs))
    total = draw(st.integers(sum(limits.minimums), sum(limits.caps)))
    return limits, min(total, max(most_samples, sum(limits.minimums)))


@STEADY
@given(case=cases(), data=st.data())
def test_any_finite_weights_make_a_valid_split(case: tuple[Bounds, int], data: st.DataObject) -> None:
    limits, total = case
    weight = st.floats(0, 1e100, allow_nan=False, allow_infinity=False)
    weights = data.draw(st.lists(weight, min_size=len(limits.caps), max_size=len(limits.caps)))
    assert_valid(proportional(weights, total, limits), total, limits)


@STEADY
@given(weights=st.lists(st.integers(0, 50), min_size=1, max_size=6), total=st.integers(6, 200))
def test_a_faster_rank_never_gets_fewer_samples(weights: list[int], total: int) -> None:
    samples = proportional([float(weight) for weight in weights], total, bounds(len(weights), total))
    for (mine, my_samples), (other, other_samples) in itertools.permutations(zip(weights, samples, strict=True), 2):
        if mine > other:
            assert my_samples >= other_samples


@STEADY
@given(case=cases(), scale=st.sampled_from([2.0**-40, 0.25, 8.0, 2.0**40]), data=st.data())
def test_only_ratios_of_weights_count(case: tuple[Bounds, int], scale: float, data: st.DataObject) -> None:
    limits, total = case
    size = len(limits.caps)
    weights = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=size, max_size=size))
    scaled = [weight * scale for weight in weights]
    assert proportional(scaled, total, limits) == proportional(weights, total, limits)


@STEADY
@given(case=cases(most_ranks=4), data=st.data())
def test_a_proportional_split_is_as_near_to_the_bounded_ideal_as_any_split(
    case: tuple[Bounds, int], data: st.DataObject
) -> None:
    """Among all splits, the one with the least squared distance to the shares λ·w clipped to the bounds."""
    limits, total = case
    size = len(limits.caps)
    weights = [float(w) for w in data.draw(st.lists(st.integers(1, 30), min_size=size, max_size=size))]
    ideal = clipped_shares(weights, total, limits)
    distance = {split: math.dist(split, ideal) for split in every_split(total, limits)}
    assert distance[proportional(weights, total, limits)] <= min(distance.values()) + 1e-6


def clipped_shares(weights: Sequence[float], total: int, limits: Bounds) -> list[float]:
    """λ found by bisection: an independent way to what `_fill` does by clipping."""

    def shares(scale: float) -> list[float]:
        return [
            min(max(scale * w, low), high) for w, low, high in zip(weights, limits.minimums, limits.caps, strict=True)
        ]

    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(shares(middle)) < total else (low, middle)
    return shares(high)


# --- balanced ----------------------------------------------------------------------------------------------------------


def test_sixty_four_samples_on_mixed4_take_27_units_balanced_and_28_rounded() -> None:
    """The module's own example: time of rank i is b_i / speed_i."""
    costs = [RankCost(fixed_s=0.0, per_sample_s=1 / speed) for speed in MIXED4]
    rounded, best = proportional(MIXED4, 64, bounds(4, 64)), balanced(costs, 64, bounds(4, 64))
    assert slowest_s(costs, rounded) == pytest.approx(28.0)
    assert slowest_s(costs, best) == pytest.approx(27.0)


def test_balanced_gives_each_sample_to_the_rank_that_finishes_it_earliest() -> None:
    """As it is defined, and not in halves, also of large batches; a rank may cost nothing, and others as much as each other."""
    draw = random.Random(5)
    for _ in range(200):
        size, total = draw.randint(1, 9), draw.choice((7, 64, 1000, 5000))
        costs = [
            RankCost(fixed_s=draw.choice((0, 1, 2.5)), per_sample_s=draw.choice((0, 1, 0.1, 3))) for _ in range(size)
        ]
        minimums = [draw.randint(0, total // size) for _ in range(size)]
        caps = [low + draw.choice((total, total // 3 + 1)) for low in minimums]
        if sum(caps) < total:
            continue
        samples = list(minimums)
        for _ in range(total - sum(minimums)):
            open_ranks = [rank for rank in range(size) if samples[rank] < caps[rank]]
            ends = {rank: costs[rank].fixed_s + costs[rank].per_sample_s * (samples[rank] + 1) for rank in open_ranks}
            samples[min(open_ranks, key=lambda rank: (ends[rank], rank))] += 1
        assert balanced(costs, total, Bounds(minimums=tuple(minimums), caps=tuple(caps))) == tuple(samples)


def test_balanced_is_as_good_as_the_best_of_all_splits() -> None:
    generator = random.Random(3)
    tried = 0
    while tried < NUM_SMALL_CASES:
        num_ranks = generator.randint(1, 4)
        minimums = tuple(generator.randint(0, 2) for _ in range(num_ranks))
        limits = Bounds(minimums=minimums, caps=tuple(low + generator.randint(0, 7) for low in minimums))
        total = generator.randint(sum(limits.minimums), sum(limits.caps))
        costs = [
            RankCost(
                fixed_s=generator.choice((0.0, 3.0, generator.uniform(0, 5))), per_sample_s=generator.uniform(0, 4)
            )
            for _ in range(num_ranks)
        ]
        least = min(slowest_s(costs, split) for split in every_split(total, limits))
        assert slowest_s(costs, balanced(costs, total, limits)) == pytest.approx(least), (costs, total, limits)
        tried += 1


@STEADY
@given(case=cases(most_ranks=3, most_samples=20), data=st.data())
def test_balanced_beats_or_equals_every_split_that_hypothesis_draws(
    case: tuple[Bounds, int], data: st.DataObject
) -> None:
    limits, total = case
    cost = st.builds(RankCost, fixed_s=st.integers(0, 9).map(float), per_sample_s=st.integers(0, 9).map(float))
    costs = data.draw(st.lists(cost, min_size=len(limits.caps), max_size=len(limits.caps)))
    samples = balanced(costs, total, limits)
    assert_valid(samples, total, limits)
    assert slowest_s(costs, samples) == min(slowest_s(costs, split) for split in every_split(total, limits))


@STEADY
@given(
    speeds=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6),
    fixed=st.lists(st.floats(0.0, 5.0), min_size=6, max_size=6),
)
def test_one_more_sample_takes_nothing_from_any_rank(speeds: list[float], fixed: list[float]) -> None:
    costs = [RankCost(fixed_s=a, per_sample_s=1 / speed) for speed, a in zip(speeds, fixed, strict=False)]
    before = balanced(costs, 30, bounds(len(costs), 31))
    after = balanced(costs, 31, bounds(len(costs), 31))
    assert all(more >= fewer for fewer, more in zip(before, after, strict=True))


# --- even, bounds, errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "num_ranks", "expected"), [(64, 4, (16,) * 4), (10, 4, (3, 3, 2, 2)), (4, 4, (1,) * 4), (7, 1, (7,))]
)
def test_an_even_split_differs_by_at_most_one_and_the_first_ranks_take_the_rest(
    total: int, num_ranks: int, expected: tuple[int, ...]
) -> None:
    assert even(total, bounds(num_ranks, total)) == expected


def test_bounds_cap_no_rank_above_the_batch() -> None:
    assert bounds(3, 64, caps=[100, 64, 5]) == Bounds(minimums=(1, 1, 1), caps=(64, 64, 5))


Splitter = Callable[[int, Bounds], object]
SPLITTERS: list[Splitter] = [
    even,
    lambda total, limits: proportional([1.0] * len(limits.caps), total, limits),
    lambda total, limits: balanced([RankCost(fixed_s=0.0, per_sample_s=1.0)] * len(limits.caps), total, limits),
]


@pytest.mark.parametrize("split", SPLITTERS, ids=["even", "proportional", "balanced"])
def test_a_batch_smaller_than_the_minimums_is_refused_with_the_least_batch(split: Splitter) -> None:
    with pytest.raises(SpecError) as caught:
        split(7, bounds(4, 7, minimum=2))
    assert str(caught.value) == (
        "a global batch of 7 cannot give 4 ranks their minimum of 2 each: use a batch of at least 8, or fewer ranks"
    )


@pytest.mark.parametrize("split", SPLITTERS, ids=["even", "proportional", "balanced"])
def test_a_batch_that_no_memory_holds_is_refused_with_what_fits(split: Splitter) -> None:
    with pytest.raises(AutotuneError, match=r"a global batch of 64 does not fit: the devices' memory holds 30 samples"):
        split(64, bounds(2, 64, caps=[10, 20]))


def test_a_minimum_above_its_cap_is_refused() -> None:
    with pytest.raises(AutotuneError, match="the memory of rank 0 holds 1 samples but its minimum is 2"):
        bounds(2, 64, minimum=2, caps=[1, 64]).check(64)


@pytest.mark.parametrize("weight", [math.nan, math.inf, -1.0])
def test_a_weight_that_is_no_amount_is_refused(weight: float) -> None:
    with pytest.raises(SpecError, match="finite and not negative"):
        proportional([1.0, weight], 64, bounds(2, 64))
