"""Every method of tuning keeps the same contract, on a made-up cluster whose step times are a formula."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.results.judge.selection import by_speed
from autotune.results.store.record import Role, TrialRecord, TrialState
from autotune.search.baselines import DefaultDdp, PlainOptuna, TunedDdp
from autotune.search.guided import GuidedSearch
from autotune.search.problem import Problem
from autotune.search.rank_speeds import worthwhile_split
from autotune.search.tuner import SearchOptions, Tuner
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.workloads.cluster import load_cluster
from autotune.workloads.graph import Op, OpGraph
from autotune.workloads.plan import MIB, Plan
from autotune.workloads.split import Bounds, RankCost, balanced
from tests.autotune.simulate.test_closed_forms import make_graph
from tests.results import sample

BUCKETS = (MIB // 4, MIB, 4 * MIB)
TUNERS: dict[str, Callable[[Problem], Tuner]] = {
    "default": DefaultDdp,
    "tuned DDP": lambda problem: TunedDdp(problem, BUCKETS),
    "tuned DDP, fp16": lambda problem: TunedDdp(problem, BUCKETS, codec="fp16"),
    "plain Optuna": lambda problem: PlainOptuna(problem, seed=0),
    "ours": lambda problem: GuidedSearch(problem, SearchOptions()),
    "ours, lossy": lambda problem: GuidedSearch(problem, SearchOptions(allow_lossy=True)),
    "random": lambda problem: GuidedSearch(problem, SearchOptions(sampler="random")),
}

ALL = Op(
    name="all",
    kind="Linear",
    num_calls=1,
    flops_per_sample=1e6,
    fixed_bytes=0.0,
    bytes_per_sample=0.0,
    param_bytes=0,
    backward_factor=2.0,
)


def make_problem() -> Problem:
    info = sample.info().workload
    return Problem(
        global_batch=info.global_batch,
        param_bytes=info.param_bytes,
        graph=OpGraph(ops=(ALL,), saved_bytes_per_sample=0.0),
        cluster=load_cluster("mixed4"),
        limits=Bounds(minimums=(1,) * 4, caps=(64,) * 4),
        transports=("gloo",),
    )


def step_s(plan: Plan) -> float:
    """The slowest rank, and a cost that is least at 1 MiB buckets; fp16 and bf16 save a little."""
    shares = zip(plan.batch.samples, sample.SPEEDS, strict=True)
    compute_s = max(count * sample.SAMPLE_S / speed for count, speed in shares)
    return compute_s + 0.01 * abs(plan.comm.bucket_bytes.bit_length() - 21) - 0.005 * (not plan.is_lossless)


def run(
    tuner: Tuner,
    trials: int,
    *,
    fails: Callable[[Plan], bool] = lambda _: False,
    takes: Callable[[Plan], float] = step_s,
) -> list[TrialRecord]:
    records: list[TrialRecord] = []
    for number in range(trials):
        proposal = tuner.propose(records)
        if proposal is None:
            break
        plan = proposal.plan
        state = TrialState.FAILED if fails(plan) else TrialState.COMPLETE
        record = TrialRecord(
            number=number,
            role=proposal.role,
            state=state,
            plan=plan,
            params=proposal.params,
            search_number=proposal.number,
            reason="broken" if fails(plan) else "",
            steps_s=() if fails(plan) else (takes(plan),),
            ranks=() if fails(plan) else sample.ranks(plan.batch.samples, takes(plan)),
        )
        records.append(record)
        tuner.tell(record)
    return records


@pytest.mark.parametrize("name", TUNERS)
def test_every_proposal_can_run_and_keeps_to_its_kind(name: str) -> None:
    tuner = TUNERS[name](make_problem())
    records = run(tuner, 12)
    assert records
    for record in records:
        record.plan.validate(num_ranks=4, global_batch=64)
        assert record.plan.is_lossless or not tuner.is_lossless


@pytest.mark.parametrize("name", TUNERS)
def test_no_step_is_spent_on_a_plan_measured_before(name: str) -> None:
    records = run(TUNERS[name](make_problem()), 12)
    if name != "plain Optuna":  # it knows nothing of plans, and may
        assert len({record.plan.fingerprint() for record in records}) == len(records)


@pytest.mark.parametrize("name", TUNERS)
def test_failures_are_survived(name: str) -> None:
    run(TUNERS[name](make_problem()), 8, fails=lambda plan: plan.comm.bucket_bytes < MIB)
    run(TUNERS[name](make_problem()), 8, fails=lambda _: True)


def test_the_default_is_one_even_plan_whatever_devices_hold() -> None:
    (record,) = run(DefaultDdp(make_problem()), 5)
    assert (record.role, record.plan.batch.samples, record.plan.comm.reducer) == (Role.DEFAULT, (16,) * 4, "ddp")


def test_tuning_manually_splits_in_proportion_and_tries_every_bucket_once() -> None:
    """And before that the three fastest devices alone, which would be as fast if communication took nothing."""
    records = run(TunedDdp(make_problem(), BUCKETS, codec="fp16"), 12)
    assert [record.role for record in records] == [Role.DEFAULT, *[Role.PEER] * 4]
    tried = [(record.plan.batch.samples, record.plan.comm.bucket_bytes) for record in records[1:]]
    every, fastest = (26, 18, 13, 7), (29, 20, 15, 0)
    assert tried == [(every, BUCKETS[-1]), (fastest, BUCKETS[-1]), (every, BUCKETS[0]), (every, BUCKETS[1])]
    assert {record.plan.compression.codec for record in records[1:]} == {"fp16"}
    assert all(record.plan.comm.reducer == "ddp" for record in records)


def test_tuning_manually_leaves_out_a_device_that_costs_more_than_it_adds() -> None:
    def slow_link_s(plan: Plan) -> float:
        return step_s(plan) + (1.0 if plan.batch.samples[3] else 0.0)

    records = run(TunedDdp(make_problem(), BUCKETS), 12, takes=slow_link_s)
    best = min((record for record in records if record.step_s), key=lambda record: record.step_s or 0.0)
    assert best.plan.batch.samples[3] == 0
    assert {record.plan.comm.bucket_bytes for record in records if not record.plan.batch.samples[3]} == set(BUCKETS)


def test_where_the_default_fails_three_times_there_is_nothing_to_tune() -> None:
    assert len(run(TunedDdp(make_problem(), BUCKETS), 12, fails=lambda _: True)) == 3


def test_our_search_starts_with_the_default_and_finds_the_balanced_split_at_once() -> None:
    records = run(GuidedSearch(make_problem(), SearchOptions()), 10)
    assert [record.role for record in records] == [Role.DEFAULT, *[Role.SEARCH] * 9]
    assert records[1].plan.batch.samples in {(26, 18, 13, 7), (27, 18, 13, 6)}
    assert min(step_s(record.plan) for record in records) < step_s(records[0].plan) / 2


def test_the_last_trials_of_a_budget_measure_the_best_plans_again() -> None:
    records = run(GuidedSearch(make_problem(), SearchOptions(trials=9)), 12)[:10]
    fingerprints = [record.plan.fingerprint() for record in records]
    assert len(set(fingerprints[:7])) == 7
    best = sorted(records[:7], key=lambda record: step_s(record.plan))[:3]
    assert set(fingerprints[7:]) == {record.plan.fingerprint() for record in best}


def make_simulator() -> Simulator:
    """Of eight ops whose parameters make up the sample's, on the cluster of the problem."""
    info, problem = sample.info().workload, make_problem()
    graph = make_graph(8, param_bytes=info.param_bytes // 8, flops=info.flops_per_sample / 24)
    return Simulator(info, graph, cost_model(graph, problem.cluster))


def test_with_a_simulator_the_best_prediction_is_measured_right_after_the_default() -> None:
    simulator = make_simulator()
    tuner = GuidedSearch(make_problem(), SearchOptions(), simulator=simulator)
    records = run(tuner, 3)
    predicted = [simulator.step_s(record.plan) for record in records]
    assert records[0].role is Role.DEFAULT
    assert predicted[1] < predicted[0] / 2


def test_with_a_simulator_the_search_ends_when_nothing_promises_more_than_noise() -> None:
    tuner = GuidedSearch(make_problem(), SearchOptions(trials=60), simulator=make_simulator())
    records = run(tuner, 60)
    assert len(records) < 40
    assert tuner.enough == "no other plan promises more than noise"
    best = by_speed(records)[0].plan
    assert sum(record.plan == best for record in records) == 2  # what is kept was measured twice


def test_with_a_simulator_every_proposal_can_run_and_failures_are_survived() -> None:
    for record in run(GuidedSearch(make_problem(), SearchOptions(), simulator=make_simulator()), 10):
        record.plan.validate(num_ranks=4, global_batch=64)
    run(GuidedSearch(make_problem(), SearchOptions(), simulator=make_simulator()), 8, fails=lambda _: True)


def test_the_control_takes_no_hints() -> None:
    """Random search proposes the same with a simulator as without."""
    with_hints, without = (
        run(GuidedSearch(make_problem(), SearchOptions(sampler="random"), simulator=given), 6)
        for given in (make_simulator(), None)
    )
    assert [record.plan for record in with_hints] == [record.plan for record in without]


def test_equal_devices_keep_the_even_split_whatever_chance_measured() -> None:
    space = make_problem().space((1.0,) * 4, allow_lossy=False)
    nearly_even = [RankCost(fixed_s=0.0, per_sample_s=seconds) for seconds in (1.0, 1.01, 0.99, 1.02)]
    assert worthwhile_split(nearly_even, space) == (16, 16, 16, 16)
    uneven = [RankCost(fixed_s=0.0, per_sample_s=seconds) for seconds in (1.0, 1.5, 2.0, 4.0)]
    assert worthwhile_split(uneven, space) == balanced(uneven, 64, space.limits)


def test_a_plain_study_begins_with_even_shares_and_uses_ddp_only() -> None:
    records = run(PlainOptuna(make_problem(), seed=0), 8)
    assert records[0].plan.batch.samples == (16,) * 4
    assert {(record.plan.comm.reducer, record.plan.compression.codec) for record in records} == {("ddp", "none")}
    assert len({record.plan.batch.samples for record in records}) > 4


def test_a_plain_study_is_the_same_for_the_same_seed() -> None:
    first, again, other = (run(PlainOptuna(make_problem(), seed=seed), 6) for seed in (0, 0, 1))
    assert [r.plan for r in first] == [r.plan for r in again]
    assert [r.plan for r in first] != [r.plan for r in other]
