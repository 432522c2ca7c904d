"""Simulate, then measure: corrected predictions, and when there is nothing left to learn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.results.store.record import Role, TrialRecord, TrialState
from autotune.search.local_search import descend, knob_plans, moved
from autotune.search.ranking import Ranking, between_trials
from autotune.search.residual import PRIOR, Case, Residual, expected_gain
from autotune.space.space import Space
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan, Plan, lossless_codecs
from autotune.workloads.split import bounds
from tests.autotune.simulate.test_closed_forms import make_graph, make_simulator

TOTAL = 16
SPACE = Space(
    global_batch=TOTAL,
    limits=bounds(4, TOTAL),
    reference=(1.0, 0.67, 0.5, 0.25),
    transports=("gloo", "mpi"),
    codecs=lossless_codecs(),
    max_bucket_log2=24,
)


@pytest.fixture(scope="module")
def simulator():
    return make_simulator(make_graph(4, param_bytes=2_000_000, flops=1e7), load_cluster("mixed4"), TOTAL)


def record_of(number, plan, step_s, noise=0.001):
    steps = tuple(step_s * (1 + noise * sign) for sign in (-1, 0, 1))
    return TrialRecord(number=number, role=Role.SEARCH, state=TrialState.COMPLETE, plan=plan, steps_s=steps)


def test_residual_knows_nothing_at_first():
    mean, spread = Residual([]).expect([(0.0,), (1.0,)])
    assert list(mean) == [0.0, 0.0]
    assert list(spread) == [PRIOR, PRIOR]


def test_residual_learns_where_it_has_seen_and_doubts_where_it_has_not():
    residual = Residual(
        [Case(features=(0.0,), log_error=0.3, noise=0.01), Case(features=(0.5,), log_error=0.3, noise=0.01)]
    )
    mean, spread = residual.expect([(0.0,), (9.0,)])
    assert mean[0] == pytest.approx(0.3, abs=0.01)
    assert mean[1] == pytest.approx(0.3, abs=0.01)  # the mean error, for want of better
    assert spread[0] < 0.02 < 0.9 * PRIOR < spread[1]


def test_residual_tells_kinds_apart():
    cases = [Case(features=(0.0, kind * 3.0), log_error=error, noise=0.005) for kind, error in ((0, 0.0), (1, 0.2))]
    mean, _ = Residual(cases).expect([(0.0, 0.0), (0.0, 3.0)])
    assert mean[0] == pytest.approx(0.0, abs=0.02)
    assert mean[1] == pytest.approx(0.2, abs=0.02)


def test_expected_gain_agrees_with_drawing():
    draws = np.random.default_rng(0).normal(-0.02, 0.05, 400_000)
    drawn = np.maximum(-draws, 0).mean()
    assert expected_gain(0.0, np.array([-0.02]), np.array([0.05]))[0] == pytest.approx(drawn, rel=0.01)


def test_the_first_choice_is_the_best_prediction(simulator):
    ranking = Ranking(simulator, SPACE)
    candidates = knob_plans(SPACE, (7, 4, 3, 2))
    chosen = ranking.pick(candidates, [], explore=False)
    assert chosen.predicted_s == min(map(simulator.step_s, candidates))


def test_measurements_correct_the_ranking(simulator):
    """One transport turns out 40 % slower than predicted: the other is chosen from then on."""
    ranking, candidates = Ranking(simulator, SPACE), knob_plans(SPACE, (7, 4, 3, 2))
    gloo = [plan for plan in candidates if plan.comm.transport == "gloo"][:4]
    mpi = [plan for plan in candidates if plan.comm.transport == "mpi"][:1]
    records = [record_of(i, plan, 1.4 * simulator.step_s(plan)) for i, plan in enumerate(gloo)]
    records += [record_of(9, plan, simulator.step_s(plan)) for plan in mpi]
    assert ranking.pick(candidates, records, explore=False).plan.comm.transport == "mpi"


def test_where_everything_is_known_nothing_is_to_be_gained(simulator):
    ranking, plans = Ranking(simulator, SPACE), knob_plans(SPACE, (7, 4, 3, 2))
    records = [record_of(number, plan, simulator.step_s(plan)) for number, plan in enumerate(plans)]
    slower = Plan(batch=BatchPlan(samples=(4, 4, 4, 4)), comm=CommPlan(bucket_bytes=2**20))
    assert ranking.pick([slower], records, explore=True).gain < 1e-4


def test_measured_plans_are_not_chosen_again(simulator):
    ranking, split = Ranking(simulator, SPACE), (7, 4, 3, 2)
    first = ranking.choose([], split, None, explore=False)
    second = ranking.choose([record_of(0, first.plan, first.predicted_s)], split, first.plan, explore=False)
    assert second.plan != first.plan


def test_every_choice_is_a_point_of_the_space(simulator):
    ranking, records = Ranking(simulator, SPACE), []
    for number in range(6):
        best = records[0].plan if records else None
        choice = ranking.choose(records, (7, 4, 3, 2), best, [{}] * 0, explore=bool(number % 2))
        assert SPACE.plan(SPACE.point(choice.plan)) == choice.plan
        records.append(record_of(number, choice.plan, choice.predicted_s))


def test_moves_keep_the_sum_and_the_bounds():
    plan = Plan(batch=BatchPlan(samples=(13, 1, 1, 1)))
    plans = moved(plan, SPACE)
    assert plans
    assert all(sum(p.batch.samples) == TOTAL and min(p.batch.samples) >= 1 for p in plans)


def test_descent_finds_the_best_of_all_splits(simulator):
    """Against brute force over every split, with the bucket fixed by the smallest space."""
    space = Space(
        global_batch=8,
        limits=bounds(4, 8),
        reference=(1.0,) * 4,
        transports=("gloo",),
        codecs=lossless_codecs(),
        max_bucket_log2=16,
    )
    found = descend(space, (2, 2, 2, 2), simulator.step_s)[0]
    every = [
        (a, b, c, 8 - a - b - c) for a in range(1, 6) for b in range(1, 6) for c in range(1, 6) if 8 - a - b - c >= 1
    ]
    best = min(
        simulator.step_s(Plan(batch=BatchPlan(samples=split), comm=CommPlan(bucket_bytes=2**16))) for split in every
    )
    assert found[0] == pytest.approx(best)


def test_descent_stays_within_its_budget(simulator):
    judged = []
    descend(SPACE, (7, 4, 3, 2), lambda plan: judged.append(plan) or simulator.step_s(plan), most=10)
    assert len(judged) == 10


def test_plans_that_do_not_fit_come_last(simulator):
    ranked = descend(SPACE, (7, 4, 3, 2), lambda plan: math.inf if plan.comm.transport == "gloo" else 1.0)
    assert ranked[0][1].comm.transport == "mpi"


def test_one_lucky_trial_does_not_decide(simulator):
    """A plan that was quick once and slow the next time is not kept before one that was steady, and like its neighbours."""
    ranking, split = Ranking(simulator, SPACE), (7, 4, 3, 2)
    plans = {plan.comm.bucket_bytes: plan for plan in knob_plans(SPACE, split) if plan.comm.transport == "gloo"}
    lucky, steady, like_steady = plans[2**16], plans[2**20], plans[2**21]
    base = simulator.step_s(steady)
    measured = [(lucky, 0.97 * base), (steady, base), (like_steady, 1.01 * base), (lucky, 1.25 * base), (steady, base)]
    records = [record_of(number, plan, step_s) for number, (plan, step_s) in enumerate(measured)]
    assert ranking.final(records).plan == steady


def test_nothing_that_ran_nothing_to_keep(simulator):
    assert Ranking(simulator, SPACE).final([]) is None


def test_trials_of_one_plan_tell_the_noise():
    plan = Plan(batch=BatchPlan(samples=(4, 4, 4, 4)))
    assert between_trials([record_of(0, plan, 1.0)]) == 0.0
    assert between_trials([record_of(0, plan, 1.0), record_of(1, plan, 1.1)]) == pytest.approx(
        math.log(1.1) / math.sqrt(2)
    )


def test_trials_that_disagree_leave_doubt(simulator):
    """Steps of one trial may be steady and the next trial elsewhere: what two trials differ by counts as noise."""
    ranking, plan = Ranking(simulator, SPACE), knob_plans(SPACE, (7, 4, 3, 2))[0]
    doubts = []
    for second in (1.0, 1.25):
        records = [
            record_of(number, plan, share * simulator.step_s(plan)) for number, share in enumerate((1.0, second))
        ]
        doubts.append(ranking._residual(records).expect([ranking._features(plan)])[1][0])
    assert doubts[0] < 0.01
    assert doubts[1] > 0.05
