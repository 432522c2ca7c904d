"""What trials say about each rank's speed: lines through points, never a cost below zero."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.results.store.record import RankResult, Role, TrialRecord, TrialState
from autotune.search.guided import openings
from autotune.search.rank_speeds import fit_costs, fit_line, relative_speeds
from autotune.space.space import Space, configurations
from autotune.workloads.plan import lossless_codecs
from autotune.workloads.split import RankCost, balanced, bounds
from tests.results import sample


def result(samples: int, compute_s: float, rank: int = 0) -> RankResult:
    return RankResult(
        rank=rank, device="d", samples=samples, compute_s=compute_s, wait_s=0.0, cpu_s=0.0, peak_memory_bytes=0
    )


def record(number: int, *ranks: tuple[int, float]) -> TrialRecord:
    """A finished trial whose ranks took (samples, seconds)."""
    results = tuple(result(samples, seconds, rank) for rank, (samples, seconds) in enumerate(ranks))
    plan = sample.plan(tuple(samples for samples, _ in ranks))
    done = sample.refused(number, Role.SEARCH, plan, TrialState.COMPLETE, "")
    return dataclasses.replace(done, ranks=results, steps_s=(1.0,))


def line(cost: RankCost) -> tuple[float, float]:
    return cost.fixed_s, cost.per_sample_s


# --- one rank ----------------------------------------------------------------------------------------------------------


def test_points_on_a_line_give_that_line() -> None:
    points = [result(b, 0.5 + 0.25 * b) for b in (4, 8, 16, 20)]
    assert line(fit_line(points)) == pytest.approx((0.5, 0.25))


def test_one_batch_size_alone_is_a_line_through_zero() -> None:
    assert line(fit_line([result(16, 4.0)])) == pytest.approx((0.0, 0.25))


def test_of_several_trials_of_one_size_the_median_counts() -> None:
    assert line(fit_line([result(10, 1.0), result(10, 99.0), result(10, 1.2)])) == pytest.approx((0.0, 0.12))


def test_an_outlier_among_repeats_does_not_bend_the_line() -> None:
    points = [result(10, 2.0), result(10, 2.0), result(10, 50.0), result(20, 3.0)]
    assert line(fit_line(points)) == pytest.approx((1.0, 0.1))


def test_a_size_tried_often_weighs_no_more_than_one_tried_once() -> None:
    points = [*[result(10, 2.0)] * 50, result(20, 4.0), result(30, 5.0)]
    assert line(fit_line(points)) == line(fit_line([result(10, 2.0), result(20, 4.0), result(30, 5.0)]))


def test_a_line_that_would_start_below_zero_goes_through_zero() -> None:
    assert line(fit_line([result(10, 1.0), result(20, 4.0)])) == pytest.approx((0.0, 2.5 / 15))


def test_a_line_that_would_fall_goes_through_zero() -> None:
    assert line(fit_line([result(10, 4.0), result(20, 2.0)])) == pytest.approx((0.0, 3.0 / 15))


def test_trials_without_samples_on_the_rank_say_nothing_about_it() -> None:
    assert fit_line([result(0, 7.0), result(16, 4.0)]) == fit_line([result(16, 4.0)])


def test_a_rank_that_never_had_samples_still_has_a_cost() -> None:
    assert fit_line([result(0, 7.0)]).per_sample_s > 0


# --- all ranks ---------------------------------------------------------------------------------------------------------


def test_before_any_trial_has_finished_nothing_is_known() -> None:
    failed = sample.refused(0, Role.DEFAULT, sample.plan(), TrialState.FAILED, "no")
    assert fit_costs([]) is None
    assert fit_costs([failed]) is None


def test_every_rank_gets_its_own_line_and_failed_trials_are_left_out() -> None:
    records = [
        record(0, (10, 1.5), (10, 2.0)),
        sample.refused(1, Role.SEARCH, sample.plan((5, 15)), TrialState.INFEASIBLE, "no"),
        record(2, (14, 1.9), (6, 1.2)),
    ]
    costs = fit_costs(records)
    assert costs is not None
    assert line(costs[0]) == pytest.approx((0.5, 0.1))
    assert line(costs[1]) == pytest.approx((0.0, 0.2))


def test_speeds_are_relative_to_the_fastest() -> None:
    costs = [RankCost(fixed_s=0.0, per_sample_s=slow) for slow in (1.0, 1.5, 2.0, 4.0)]
    assert relative_speeds(costs, (16, 16, 16, 16)) == pytest.approx((1.0, 1 / 1.5, 1 / 2, 1 / 4))


def test_a_fixed_cost_makes_a_rank_slower_the_fewer_samples_it_has() -> None:
    costs = [RankCost(fixed_s=1.0, per_sample_s=1.0)] * 2
    assert relative_speeds(costs, (9, 1)) == pytest.approx((1.0, 5 / 9))


def test_a_rank_without_samples_has_the_speed_of_its_first() -> None:
    costs = [RankCost(fixed_s=1.0, per_sample_s=1.0)] * 2
    assert relative_speeds(costs, (1, 0)) == pytest.approx((1.0, 1.0))


def test_the_default_trial_on_mixed4_leads_to_the_balanced_split() -> None:
    """From one even trial: speeds 1, 2/3, 1/2, 1/4 are found, and 27 units of time instead of 64."""
    costs = fit_costs([record(0, (16, 16.0), (16, 24.0), (16, 32.0), (16, 64.0))])
    assert costs is not None
    samples = balanced(costs, 64, bounds(4, 64))
    assert max(count * slow for count, slow in zip(samples, (1.0, 1.5, 2.0, 4.0), strict=True)) == 27.0


# --- what is tried first -----------------------------------------------------------------------------------------------


def test_every_transport_is_tried_by_a_plan_that_really_uses_it() -> None:
    space = Space(
        global_batch=64,
        limits=bounds(2, 64),
        reference=(1.0, 1.0),
        transports=("gloo", "mpi"),
        codecs=lossless_codecs(),
        max_bucket_log2=20,
        **configurations(2, ("gloo", "mpi")),
    )
    tried = [space.plan(space.split_point((32, 32)) | knobs) for knobs in openings(space)]
    assert {plan.comm.transport for plan in tried} == {"gloo", "mpi"}
    named = set(space.coordinates())
    assert all(
        set(space.split_point((32, 32)) | knobs) == named for knobs in openings(space)
    )  # nothing is left to chance
