"""What the session that judges predictions would measure, without measuring it: the plans that it draws, and its figures."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from autotune.jobs.context import capture_workload, sample_bounds
from autotune.results.store.record import WorkloadInfo
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.factors import factor_chooser, linear_ops
from autotune.simulate.limit import stated_sample_s
from autotune.simulate.simulator import Simulator
from autotune.space.space import Space, max_bucket_log2
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, Plan, Priority
from autotune.workloads.registry import load_workload
from tests.benchmarks.accuracy import KNOBS, Pair, first_ranked_loss, per_knob
from tests.benchmarks.drawn_plans import drawn_plans
from tests.benchmarks.prediction import (
    CLUSTER_FILES,
    CLUSTERS,
    PLANS_PER_CELL,
    WHAT_IF,
    WORKLOADS,
    knob_table,
    summary,
    table,
)

CELLS = [(workload, cluster) for workload in WORKLOADS for cluster in (*CLUSTERS, *WHAT_IF)]


@cache
def graph_of(workload: str):
    return capture_workload(load_workload(workload, {}), 0)


def simulator_and_space(workload: str, name: str) -> tuple[Simulator, Space]:
    loaded, graph = load_workload(workload, {}), graph_of(workload)
    path = CLUSTER_FILES / f"{name}.toml"
    cluster = load_cluster(str(path) if path.exists() else name)
    total = loaded.global_batch
    info = WorkloadInfo(
        name=workload,
        options={},
        fingerprint="",
        global_batch=total,
        param_bytes=graph.param_bytes,
        flops_per_sample=graph.flops_per_sample,
    )
    space = Space(
        global_batch=total,
        limits=sample_bounds(loaded, graph, cluster, total=total),
        reference=tuple(1 / seconds for seconds in stated_sample_s(graph, cluster)),
        transports=("gloo", "mpi"),
        codecs=("none",),
        max_bucket_log2=max_bucket_log2(graph.param_bytes),
        factors_for=factor_chooser(graph, cluster),
    )
    return Simulator(info, graph, cost_model(graph, cluster)), space


def drawn(workload: str, name: str, count: int, kind: str = "lab") -> tuple[Simulator, list[Plan]]:
    simulator, space = simulator_and_space(workload, name)
    linear = [op.name for op in linear_ops(simulator.graph)]
    return simulator, drawn_plans(space, linear, count, f"{kind}/{workload}@{name}")


@pytest.mark.parametrize(("workload", "name"), CELLS)
def test_every_drawn_plan_can_run_and_be_predicted(workload, name):
    simulator, plans = drawn(workload, name, 40)
    for plan in plans:
        plan.validate(num_ranks=len(simulator.costs.cluster.devices), global_batch=simulator.info.global_batch)
        plan.check_runnable()
        assert 0 < simulator.step_s(plan) < math.inf
        assert plan.comm.collective == "ring" or plan.comm.transport == "gloo"  # what groups would refuse


def test_the_lab_part_turns_every_knob():
    plans = [plan for workload in WORKLOADS for name in CLUSTERS for plan in drawn(workload, name, PLANS_PER_CELL)[1]]
    assert len(plans) >= 60
    counts = {knob: sum(map(turns, plans)) for knob, turns in KNOBS.items()}
    assert min(counts.values()) >= 2, counts
    scheduled = [plan for plan in plans if plan.comm.reducer == "scheduled"]
    assert len(plans) / 3 <= len(scheduled) <= 2 * len(plans) / 3
    assert set(Counter(plan.comm.priority for plan in scheduled)) == set(Priority)
    credits_ = {plan.comm.credit_bytes // plan.comm.partition_bytes for plan in scheduled}
    assert min(credits_) <= 3
    assert max(credits_) >= 14
    assert {plan.comm.transport for plan in plans} == {"gloo", "mpi"}


def test_cells_draw_plans_of_their_own_and_the_same_ones_again():
    here, again = drawn("gpt", "mixed4", 7)[1], drawn("gpt", "mixed4", 7)[1]
    paced, elsewhere = drawn("gpt", "mixed4", 7, "paced")[1], drawn("gpt", "slow-link4", 7)[1]
    assert here == again
    assert not set(here) & {*paced, *elsewhere}


def test_a_head_that_shares_its_weights_sends_no_factors():
    graph = graph_of("gpt")
    tied = [op.name for op in graph.ops if op.factor_shapes and op.param_bytes == 0]
    assert tied
    assert not set(tied) & {op.name for op in linear_ops(graph)}


def pair(predicted_s: float, *steps_s: float, plan: Plan | None = None) -> Pair:
    return Pair(
        workload="gpt",
        cluster="mixed4",
        label="lab",
        plan=plan or Plan(batch=BatchPlan(samples=(1, 1))),
        predicted_s=predicted_s,
        measured_s=sorted(steps_s)[len(steps_s) // 2],
        steps_s=steps_s,
        predicted_bytes=100,
        measured_bytes=100,
    )


def test_a_loss_within_noise_is_distinguished_from_a_miss():
    best = pair(1.1, 0.98, 1.00, 1.00, 1.01, 1.08)
    noisy, far = pair(1.0, 0.97, 1.00, 1.03, 1.06, 1.09), pair(1.0, 1.2, 1.21, 1.22, 1.23, 1.24)
    loss = first_ranked_loss([best, noisy])
    assert loss.value == pytest.approx(0.03)
    assert loss.low <= 0 < loss.high
    assert not loss.is_miss
    assert loss.best_low_s <= loss.best_s <= loss.best_high_s
    assert first_ranked_loss([best, far]).is_miss
    assert first_ranked_loss([best, pair(2.0, 1.5)]).high == 0  # the first-ranked is the fastest


def test_errors_by_knob():
    plain = Plan(batch=BatchPlan(samples=(1, 1)))
    overlapped = replace(plain, comm=replace(plain.comm, reducer="scheduled", crosses_steps=True))
    pairs = [pair(1.0, 1.0, plan=plain), pair(1.0, 2.0, plan=overlapped)]
    found = per_knob(pairs)
    assert found["bucketed"]["median_error"] == 0
    assert found["cross-step overlap"]["median_error"] == pytest.approx(0.5)
    assert found["cross-step overlap"]["median_bias"] == pytest.approx(1.0)
    assert found["codec none"]["plans"] == 2
    assert "shards" not in found
    shown = {"lab": summary(pairs)}
    assert "| cross-step overlap | 50.0 % (1) |" in knob_table(shown)
    assert "in 0 of 1 cells" in table(shown)
