"""Loops that accumulate and clip, against closed forms: computing in every pass, gradients in the last one."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from autotune.simulate.cost_sources import cost_model
from autotune.simulate.cost_tables import Lines
from autotune.simulate.simulator import Simulator
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import BatchPlan, PipelinePlan, Plan
from autotune.workloads.workload import Loop
from tests.autotune.simulate.test_closed_forms import MB, exact, make_cluster, make_graph, plan_of
from tests.autotune.simulate.test_closed_forms import make_simulator as plain_simulator

OPS, LAUNCH_S, RANKS = 4, 0.25, 4


def make_simulator(graph, cluster, global_batch, **loop):
    plain = plain_simulator(graph, cluster, global_batch)
    return Simulator(plain.info, graph, cost_model(graph, cluster), loop=Loop(**loop))


def uniform(seconds, *, launch_s=0.0):
    """Links on which a ring all-reduce of an op's 10 MB takes that long."""
    speed = 2 * (RANKS - 1) / RANKS * 10 * MB / seconds
    cluster = make_cluster([speed] * RANKS)
    hosts = tuple(
        replace(host, devices=tuple(replace(device, launch_s=launch_s) for device in host.devices))
        for host in cluster.hosts
    )
    return replace(cluster, hosts=hosts)


@pytest.mark.parametrize("passes", [1, 2, 5])
def test_every_pass_computes_and_pays_its_launches_and_one_all_reduce_follows(passes):
    """A pass of b samples: 3 s of each op and sample, and two launches of each op."""
    graph = make_graph(OPS)
    simulator = make_simulator(graph, uniform(8.0 / OPS, launch_s=LAUNCH_S), RANKS * 10, accumulate=passes)
    step_s = simulator.step_s(plan_of(*[10] * RANKS, bucket_bytes=10**9))
    assert step_s == exact(3.0 * OPS * 10 + passes * 2 * OPS * LAUNCH_S + 8.0)


@pytest.mark.parametrize("passes", [1, 2, 4])
def test_gradients_overlap_with_the_last_backward_pass_only(passes):
    """Four buckets of 30 s each, the first ready when the last pass has gone back through its last op."""
    simulator = make_simulator(make_graph(OPS), uniform(30.0), RANKS * 4, accumulate=passes)
    last_s = 2.0 * OPS * 4 / passes
    before_s = 3.0 * OPS * 4 - last_s + last_s / OPS
    assert simulator.step_s(plan_of(*[4] * RANKS, bucket_bytes=10 * MB)) == exact(before_s + 4 * 30.0)


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_steps_cross_into_the_first_pass(passes):
    """One sample a pass. Buffers take 3 s and are ready every 2 s: buffer 0 overtakes buffer 1 and completes 3 s after backward,
    buffer 1 completes 6 s after it. Forward waits 3 s for op 0 and, having computed 1 s, 2 s for op 1.
    """
    simulator = make_simulator(make_graph(OPS), uniform(3.0), RANKS * passes, accumulate=passes)
    how = {"reducer": "scheduled", "partition_bytes": 10 * MB, "credit_bytes": 10 * MB}
    overlapped = simulator.step_s(plan_of(*[passes] * RANKS, **how, crosses_steps=True))
    assert overlapped == exact(12.0 * passes + 3.0 + 2.0)
    assert simulator.step_s(plan_of(*[passes] * RANKS, **how)) == exact(12.0 * passes + 6.0)


def test_clipping_needs_all_gradients_so_that_steps_do_not_cross():
    how = {"reducer": "scheduled", "partition_bytes": 10 * MB, "credit_bytes": 10 * MB}
    simulator = make_simulator(make_graph(OPS), uniform(3.0), RANKS, clip_norm=1.0)
    overlapped = simulator.simulate(plan_of(*[1] * RANKS, **how, crosses_steps=True))
    assert (overlapped.step_s, overlapped.num_steps) == (exact(18.0), 1)


def test_passes_are_near_equal_and_a_rank_with_few_samples_has_fewer():
    """7 samples in 3, 2 and 2; 1 sample at once; none: launches are paid by passes."""
    simulator = make_simulator(make_graph(1), uniform(1e-9, launch_s=LAUNCH_S), 8, accumulate=3)
    simulated = simulator.simulate(plan_of(7, 1, 0, 0, bucket_bytes=10**9))
    busy_s = simulator._busy_s(simulated)
    assert busy_s.tolist() == exact([3.0 * 7 + 3 * 2 * LAUNCH_S, 3.0 + 2 * LAUNCH_S, 0.0, 0.0])


def test_a_profiled_pass_takes_what_the_profile_says_of_one():
    """5 s and 2 s a sample, in passes of 3, 2 and 2 samples; data is read for each of them."""
    graph, cluster = make_graph(OPS), uniform(1e-9)
    costs = cost_model(graph, cluster)
    lines = Lines(fixed_s=np.full(RANKS, 5.0), slope_s=np.full(RANKS, 2.0))
    data = Lines(fixed_s=np.full(RANKS, 0.5), slope_s=np.full(RANKS, 0.1))
    info = plain_simulator(graph, cluster, 28).info
    profiled = Simulator(info, graph, replace(costs, whole=lines, data=data), loop=Loop(accumulate=3))
    expected = 3 * 5.0 + 2.0 * 7 + 3 * 0.5 + 0.1 * 7
    assert profiled.step_s(plan_of(*[7] * RANKS)) == pytest.approx(expected, rel=1e-6)


def test_a_pass_holds_the_activations_of_its_own_samples():
    graph = make_graph(2, saved=1000.0, param_bytes=0)
    plan = plan_of(7, 5)
    for passes, held in ((1, [14000.0, 10000.0]), (2, [8000.0, 6000.0]), (5, [4000.0, 2000.0])):
        simulator = make_simulator(graph, make_cluster([1.0, 1.0]), 12, accumulate=passes)
        assert simulator.simulate(plan).run.peak_bytes.tolist() == held


def test_no_pass_is_smaller_than_the_model_takes():
    assert Loop(accumulate=4, min_samples=2).passes(7) == (3, 2, 2)
    assert Loop(accumulate=4, min_samples=2).passes(1) == (1,)
    assert Loop(accumulate=4).passes(0) == ()


def test_no_accumulated_step_beats_the_limit():
    draw = random.Random(3)
    cluster = load_cluster("mixed4")
    for _ in range(60):
        total = draw.randint(8, 64)
        graph = make_graph(draw.randint(1, 5), param_bytes=draw.choice([1000, MB]), flops=10 ** draw.uniform(5, 8))
        loop = {"accumulate": draw.randint(1, 8), "clip_norm": draw.choice([None, 1.0])}
        simulator = make_simulator(graph, cluster, total, **loop)
        cuts = sorted(draw.randint(0, total) for _ in range(3))
        samples = [end - begin for begin, end in zip([0, *cuts], [*cuts, total], strict=True)]
        how = draw.choice([{}, {"reducer": "scheduled"}, {"reducer": "scheduled", "crosses_steps": True}])
        plan = plan_of(*samples, **how)
        assert simulator.step_s(plan) >= simulator.limit().step_s * (1 - 1e-9), (plan, loop)


def test_the_timeline_names_what_lies_between_and_leaves_nothing_out():
    simulator = make_simulator(make_graph(2), uniform(1.0), RANKS * 3, accumulate=3)
    spans = [
        span for span in simulator.timeline(plan_of(*[3] * RANKS)).spans if span.rank == 0 and span.track == "compute"
    ]
    assert [(span.kind, span.op) for span in sorted(spans, key=lambda span: span.start_s)] == [
        ("forward", "op0"),
        ("forward", "op1"),
        ("forward", "passes between"),
        ("backward", "op1"),
        ("backward", "op0"),
    ]
    assert sum(span.end_s - span.start_s for span in spans) == exact(3 * 2 * 3.0)


@pytest.mark.parametrize("loop", [{"accumulate": 2}, {"clip_norm": 1.0}, {"autocast": "bfloat16"}])
def test_stages_are_refused_by_name_of_what_they_do_not_run(loop):
    pipeline = PipelinePlan(schedule="gpipe", micro_batches=2, first_ops=(0, 1), stage_ranks=((0,), (1,)))
    plan = Plan(batch=BatchPlan(samples=(4, 4)), pipeline=pipeline)
    simulator = make_simulator(make_graph(2), make_cluster([1.0, 1.0]), 4, **loop)
    with pytest.raises(SpecError, match=f"{next(iter(loop))} = .*pipeline stages.*use a plan without stages"):
        simulator.simulate(plan)
