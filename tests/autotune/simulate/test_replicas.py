"""Replicas of stages: 64 devices in eight pipelines, unlike degrees within a stage, whole micro-batches round-robin, lanes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.simulate.pipeline import overlaps
from autotune.workloads.plan import CommPlan
from tests.autotune.simulate.test_closed_forms import MB, exact, make_cluster, make_graph, make_simulator
from tests.autotune.simulate.test_stages import staged


def grid(stages, replicas):
    """Rank s · D + d is the d-th replica of stage s."""
    return tuple(tuple(range(s * replicas, (s + 1) * replicas)) for s in range(stages))


@pytest.mark.parametrize("emulation", ["none", "paced"])
def test_eight_pipelines_of_eight_stages_send_at_once(emulation):
    """64 devices on hosts of their own, D = 8: every boundary's transfers pass over links of their own.

    Messages of 0.5 s, passes of 1 s and 2 s: eight pipelines take as long as one, (m + p - 1) · 3 s and the messages of the way
    there and back. In one slot for the whole cluster, their 8 · 7 · 2 · 4 messages of 0.5 s alone would take 224 s.
    """
    stages, micro = 8, 4
    graph = make_graph(stages, param_bytes=0, output=0.5 * MB)
    steps = {}
    for replicas in (1, 8):
        ranks = stages * replicas
        plan = staged((micro,) * ranks, tuple(range(stages)), grid(stages, replicas), micro_batches=micro)
        plan = replace(plan, pipeline=replace(plan.pipeline, schedule="gpipe"))
        cluster = make_cluster([1 * MB] * ranks, emulation=emulation)
        steps[replicas] = make_simulator(graph, cluster, micro * replicas).step_s(plan)
    assert steps[8] == exact(steps[1])
    assert steps[8] == exact(3 * (micro + stages - 1) + 2 * (stages - 1) * 0.5)


def test_pipelines_that_share_a_nic_share_its_speed():
    """Eight replicas of a stage on one host send to eight on another: eight messages of 0.25 s over one NIC."""
    graph = make_graph(2, param_bytes=0, output=0.25 * MB)
    cluster = make_cluster([1 * MB] * 2, ranks=[8, 8], emulation="none")
    plan = staged((1,) * 16, (0, 1), grid(2, 8))
    assert make_simulator(graph, cluster, 8).step_s(plan) == exact(6 + 2 * 8 * 0.25)


def test_degrees_may_differ_within_a_stage():
    """A pair that shares every op and a single device: 2 and 1 of three samples, 3 s a sample, half of it in the pair.

    10 MB of gradients: the single device sums one half with each of the pair, over its NIC of 1 MB/s.
    """
    cluster = make_cluster([1e15, 1 * MB], ranks=[2, 1])
    plan = staged((2, 2, 1), (0,), ((0, 1, 2),), group_sizes=((2, 1),))
    plan.validate(num_ranks=3, global_batch=3)
    simulator = make_simulator(make_graph(1), cluster, 3)
    assert simulator.step_s(plan) == pytest.approx(3.0 + 10.0, rel=1e-6)
    held = simulator.peak_memory_bytes(plan, simulator.simulate(plan))
    assert held.tolist() == exact([5.0 * MB, 5.0 * MB, 10.0 * MB])
    assert any("divided by 2" in doubt for doubt in simulator.forecast(plan).doubts)


def test_whole_micro_batches_round_robin():
    """Six micro-batches of one sample: four on a device, two on one of half its speed, 3 s and 6 s each."""
    cluster = make_cluster([1e15] * 2)
    hosts = tuple(
        replace(host, devices=tuple(replace(d, flops_per_s=1e9 / (1 + number)) for d in host.devices))
        for number, host in enumerate(cluster.hosts)
    )
    simulator = make_simulator(make_graph(1, param_bytes=0, saved=5.0), replace(cluster, hosts=hosts), 6)
    plan = staged((4, 2), (0,), ((0, 1),), micro_batches=6, sharing="round-robin")
    plan.validate(num_ranks=2, global_batch=6)
    simulated = simulator.simulate(plan)
    assert simulated.step_s == exact(12.0)
    assert [rank.compute_s for rank in simulator.forecast(plan).ranks] == exact([12.0, 12.0])
    table = simulator.stage_table(plan)
    assert [len(passes) for passes in table.order] == [8, 4]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_round_robin_pipelines_are_pipelines_of_their_own(schedule):
    """Two pipelines of three stages: each as if it were alone with half of the micro-batches."""
    graph = make_graph(3, param_bytes=0, saved=7.0, output=1.0)
    alone = staged((4, 4, 4), (0, 1, 2), grid(3, 1), micro_batches=4, schedule=schedule)
    both = staged((4,) * 6, (0, 1, 2), grid(3, 2), micro_batches=8, schedule=schedule, sharing="round-robin")
    one = make_simulator(graph, make_cluster([1e15] * 3), 4).simulate(alone)
    two = make_simulator(graph, make_cluster([1e15] * 6), 8).simulate(both)
    assert two.step_s == exact(one.step_s)
    assert two.run.peak_bytes.reshape(3, 2).max(axis=1).tolist() == one.run.peak_bytes.tolist()


def test_shares_meet_as_in_the_executor():
    """Three and one samples to two and two: the second sender has nothing for the first receiver."""
    samples = np.array([3.0, 1.0, 2.0, 2.0])
    assert overlaps([0, 1], [2, 3], samples) == [(0, 2, 2.0), (0, 3, 1.0), (1, 3, 1.0)]
    assert overlaps([0, 1], [0, 1], samples) == [(0, 0, 3.0), (1, 1, 1.0)]
    graph = make_graph(2, param_bytes=0, output=1.0 * MB)
    cluster = make_cluster([1e15, 1e15, 1 * MB, 1e15], emulation="none")
    plan = staged((3, 1, 2, 2), (0, 1), ((0, 1), (2, 3)))
    # Forward of 3 s and 1 s; 2 MB enter the third host in 2 s, then 2 + 4 s, and 2 s back; then 6 s.
    assert make_simulator(graph, cluster, 4).step_s(plan) == pytest.approx(3 + 2 + 6 + 2 + 6, rel=1e-6)


def test_blocking_sends_of_replicas_have_an_interval_too():
    graph = make_graph(2, param_bytes=0, output=1.0 * MB)
    plan = staged((2,) * 4, (0, 1), grid(2, 2), micro_batches=4, sharing="round-robin")
    plan = replace(plan, comm=CommPlan(transport="nccl"))
    simulator = make_simulator(graph, make_cluster([1 * MB] * 4), 4)
    low_s, high_s = simulator.step_range_s(plan)
    assert low_s < high_s
