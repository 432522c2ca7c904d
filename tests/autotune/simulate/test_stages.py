"""What a plan with stages costs: links and connections, tensor-parallel groups, memory, measured points, sends that may block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.results.store.fits import MemoryFit, Source, TransferFit, WorkFit
from autotune.results.store.profile import (
    HostLink,
    LinkProfile,
    OpProfile,
    Profile,
    RankProfile,
    ShardedProfile,
)
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.workloads.cluster import Cluster, Device, Host
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import BatchPlan, CommPlan, PipelinePlan, Plan
from autotune.workloads.topology import Fabric, Link
from tests.autotune.simulate.test_closed_forms import MB, exact, make_cluster, make_graph, make_simulator, plan_of


def staged(samples, first_ops, stage_ranks, *, micro_batches=1, transport="gloo", **options):
    pipeline = PipelinePlan(first_ops=first_ops, stage_ranks=stage_ranks, micro_batches=micro_batches, **options)
    return Plan(batch=BatchPlan(samples=samples), comm=CommPlan(transport=transport), pipeline=pipeline)


def line(fixed_s, per_sample_s, points=()):
    return WorkFit(fixed_s=fixed_s, per_sample_s=per_sample_s, points=points, source=Source.MEASURED, low=1, high=16)


def profile_of(graph, *, ranks=1, compute=None, links=(), hosts=(), **options):
    """Every op 1 s forward and 2 s backward per sample, on ranks that are hosts of their own."""
    ops = tuple(OpProfile(name=op.name, kind=op.kind, forward=line(0, 1.0), backward=line(0, 2.0)) for op in graph.ops)
    compute = compute or line(0, 3.0 * len(graph.ops))
    return Profile(
        workload="w",
        cluster="c",
        label="measured",
        ranks=tuple(
            RankProfile(rank=rank, device="device", host=f"host{rank}", compute=compute, ops=ops, **options)
            for rank in range(ranks)
        ),
        links=tuple(links),
        hosts=tuple(hosts),
    )


def real_cluster(num_hosts, *, link=None, per_host=1, **device):
    devices = (Device(name="device", **device),) * per_host
    return Cluster(
        name="real", hosts=tuple(Host(name=f"host{index}", devices=devices, link=link) for index in range(num_hosts))
    )


def profiled(graph, cluster, profile, global_batch):
    simulator = make_simulator(graph, make_cluster([MB]), global_batch)
    return Simulator(simulator.info, graph, cost_model(graph, cluster, [profile]))


def pair(a, b, bytes_per_s, latency_s=0.0):
    fit = TransferFit(latency_s=latency_s, bytes_per_s=bytes_per_s, source=Source.MEASURED, low=1, high=MB)
    return LinkProfile(from_host=f"host{a}", to_host=f"host{b}", transport="gloo", fit=fit)


def test_transfers_between_stages_share_links_and_no_slot():
    """Two replicas of two stages on four hosts: 1 s of activations each, on links of their own, at once."""
    graph = make_graph(2, param_bytes=0, output=1.0 * MB)
    cluster = make_cluster([1 * MB] * 4, emulation="none")
    plan = staged((1, 1, 1, 1), (0, 1), ((0, 1), (2, 3)))
    assert make_simulator(graph, cluster, 2).step_s(plan) == exact(3 + 3 + 1 + 1)


def test_messages_of_one_connection_follow_each_other():
    """Three micro-batches of 1 s, sent over 2 s each: 2 after 1, at 3, 5 and 7, then the last stage and its backward."""
    graph = make_graph(2, param_bytes=0, output=2.0 * MB)
    cluster = make_cluster([1 * MB] * 2, emulation="none", latency_s=0.5)
    plan = staged((3, 3), (0, 1), ((0,), (1,)), micro_batches=3, schedule="gpipe")
    starts = [1 + 2 * (number + 1) + 0.5 for number in range(3)]
    run = make_simulator(graph, cluster, 3).simulate(plan)
    on_second = [task for task in range(run.tasks.num_tasks) if run.tasks.device[task] == 1]
    begun = [float(run.run.start_s[task]) for task in on_second if run.tasks.seconds[task] == 1.0]
    assert begun == exact(starts)


def test_the_speed_of_a_pair_is_read():
    """Hosts of 10 MB/s, of which 0 and 1 reach each other at 2 MB/s: a ring over three takes as long as that pair."""
    graph = make_graph(1)
    links = [pair(a, b, 10 * MB) for a in range(3) for b in range(3) if a != b and {a, b} != {0, 1}]
    links += [pair(0, 1, 2 * MB), pair(1, 0, 2 * MB)]
    simulator = profiled(graph, real_cluster(3), profile_of(graph, ranks=3, links=links), 3)
    assert simulator.step_s(plan_of(1, 1, 1)) == exact(3 + 2 * 2 / 3 * 10 * MB / (2 * MB))
    assert any("1 pairs slower than their hosts measured" in origin.source for origin in simulator.costs.origins)


def test_a_stated_link_is_not_replaced():
    graph = make_graph(1)
    stated = Link(up_bytes_per_s=5 * MB, down_bytes_per_s=5 * MB)
    profile = profile_of(graph, ranks=2, links=[pair(0, 1, 2 * MB), pair(1, 0, 2 * MB)])
    simulator = profiled(graph, real_cluster(2, link=stated), profile, 2)
    assert simulator.step_s(plan_of(1, 1)) == exact(3 + 2)


def test_links_inside_a_host_are_read():
    """Two ranks of a host at 4 MB/s: 10 MB each way."""
    graph = make_graph(1)
    profile = replace(profile_of(graph, ranks=1), links=(pair(0, 0, 4 * MB, latency_s=0.1),))
    simulator = profiled(graph, real_cluster(1, per_host=2), profile, 2)
    assert simulator.step_s(plan_of(1, 1)) == exact(3 + 2.5 + 2 * 0.1)


def test_a_link_that_the_profile_concludes_is_used_with_its_pairs():
    graph = make_graph(1)
    hosts = [
        HostLink(host=f"host{index}", source=Source.MEASURED, up_bytes_per_s=10 * MB, down_bytes_per_s=10 * MB)
        for index in range(2)
    ]
    profile = profile_of(graph, ranks=2, hosts=hosts, links=[pair(0, 1, 1 * MB), pair(1, 0, 9.5 * MB)])
    simulator = profiled(graph, real_cluster(2), profile, 2)
    assert simulator.step_s(plan_of(1, 1)) == exact(3 + 10)


def test_times_of_a_tensor_parallel_degree():
    """3 s a sample alone; 2 s measured where two devices share the op, not 1.5; a degree of four is a quarter, with a doubt."""
    graph = make_graph(1, param_bytes=0)
    ops = (OpProfile(name="op0", kind="Linear", forward=line(0, 0.5), backward=line(0, 1.5)),)
    sharded = ShardedProfile(degree=2, compute=line(0, 2.0), ops=ops)
    cluster = real_cluster(1, per_host=4)
    simulator = profiled(graph, cluster, profile_of(graph, ranks=4, sharded=(sharded,)), 2)
    two = staged((1,) * 4, (0,), ((0, 1, 2, 3),), tensor_parallel=2)
    four = staged((2,) * 4, (0,), ((0, 1, 2, 3),), tensor_parallel=4)
    assert simulator.step_s(two) == exact(2.0)
    assert simulator.step_s(four) == exact(2 * 3 / 4)
    assert simulator.forecast(two).doubts == simulator.costs.notes
    assert any("divided by 4" in doubt for doubt in simulator.forecast(four).doubts)


def test_sums_within_a_group_are_counted_once():
    graph = make_graph(2, param_bytes=0, output=1.0 * MB)
    graph = replace(graph, ops=tuple(replace(op, factor_shapes=((10, 10),)) for op in graph.ops))
    cluster = make_cluster([1 * MB] * 2, latency_s=0.25)
    plan = staged((1, 1), (0,), ((0, 1),), tensor_parallel=2)
    # Every second Linear layer: 1 MB each way at 1 MB/s and two latencies, in forward and in backward.
    assert make_simulator(graph, cluster, 1).step_s(plan) == exact(6 / 2 + 2 * (1.0 + 2 * 0.25))
    costs = cost_model(graph, cluster)
    ops = tuple(OpProfile(name=op.name, kind=op.kind, forward=line(0, 1.0), backward=line(0, 2.0)) for op in graph.ops)
    sharded = ShardedProfile(degree=2, compute=line(0, 4.0), ops=ops, includes_sums=True)
    profile = replace(profile_of(graph, ranks=2, sharded=(sharded,)))
    real = Cluster(name="real", hosts=tuple(replace(h, devices=(Device(name="device"),)) for h in costs.cluster.hosts))
    assert profiled(graph, real, profile, 1).step_s(plan) == exact(4.0)


@pytest.mark.parametrize("emulation", ["paced", "none"])
def test_rings_of_tensor_parallel_groups_carry_the_bytes_of_all_members(emulation):
    """Two hosts of two devices, degree two: rings 0-2 and 1-3 of half of 10 MB each share the NICs."""
    cluster = make_cluster([1 * MB] * 2, ranks=[2, 2], emulation=emulation, latency_s=0.125)
    plan = staged((1, 1, 1, 1), (0,), ((0, 1, 2, 3),), tensor_parallel=2)
    simulator = make_simulator(make_graph(1), cluster, 2)
    assert simulator.step_s(plan) == exact(1.5 + 10.0 + 2 * 0.125)
    held = simulator.peak_memory_bytes(plan, simulator.simulate(plan))
    assert held.tolist() == exact([5.0 * MB] * 4)


def test_rings_of_replicas_pay_their_latency():
    """A ring over three replicas has four rounds."""
    cluster = make_cluster([10 * MB] * 3, latency_s=0.25)
    plan = staged((1, 1, 1), (0,), ((0, 1, 2),))
    assert make_simulator(make_graph(1), cluster, 3).step_s(plan) == exact(3 + 4 / 3 + 4 * 0.25)


def test_memory_that_every_plan_holds_does_not_shrink_with_a_stage():
    """100 bytes of state, of which a stage of two holds half; 60 measured beyond it and 7 reserved stay."""
    graph = replace(make_graph(2, param_bytes=10), held_bytes=100)
    memory = MemoryFit(fixed_bytes=160.0, bytes_per_sample=0.0, source=Source.MEASURED, low=1, high=16)
    cluster = real_cluster(2, reserved_bytes=7.0, memory_bytes=120.0)
    simulator = profiled(graph, cluster, profile_of(graph, ranks=2, memory=memory), 1)
    plan = staged((1, 1), (0, 1), ((0,), (1,)))
    assert simulator.peak_memory_bytes(plan, simulator.simulate(plan)).tolist() == exact([117.0, 117.0])
    assert simulator.fits(plan)
    whole = plan_of(1, 0)
    assert simulator.peak_memory_bytes(whole, simulator.simulate(whole)).tolist() == exact([167.0, 0.0])
    assert simulator.is_tight


def test_measured_points_are_used_where_the_batch_is_one_of_them():
    """Points at 2, 4 and 8 samples far off the line 3 s a sample: exact there, between them halfway, the line beyond."""
    graph = make_graph(1, param_bytes=0)
    points = ((2.0, 10.0), (4.0, 11.0), (8.0, 30.0))
    profile = profile_of(graph, compute=line(0, 3.0, points))
    simulator = profiled(graph, real_cluster(1), profile, 4)
    found = [simulator.step_s(plan_of(count)) for count in (1, 2, 3, 4, 6, 8, 9)]
    assert found == exact([3.0, 10.0, 10.5, 11.0, 20.5, 30.0, 27.0])


def test_measured_points_of_ops_give_their_share():
    """Two ops that cost the same on the line, and 1 to 3 at the measured batch: the first stage has a quarter."""
    graph = make_graph(2, param_bytes=0)
    profile = profile_of(graph)
    (rank,) = profile.ranks
    ops = tuple(
        replace(op, forward=line(0, 1.0, ((4.0, seconds),)), backward=line(0, 2.0, ((4.0, 2 * seconds),)))
        for op, seconds in zip(rank.ops, (1.0, 3.0), strict=True)
    )
    compute = line(0, 6.0, ((4.0, 24.0),))
    ranks = tuple(replace(rank, rank=r, host=f"host{r}", ops=ops, compute=compute) for r in range(2))
    simulator = profiled(graph, real_cluster(2), replace(profile, ranks=ranks), 4)
    busy = simulator.forecast(staged((4, 4), (0, 1), ((0,), (1,)))).ranks
    assert [rank.compute_s for rank in busy] == exact([6.0, 18.0])


def test_sends_block_or_overlap():
    """Two micro-batches of one sample: a stage that waits for its messages of 1 s takes longer than one that goes on."""
    graph = make_graph(2, param_bytes=0, output=1.0 * MB)
    simulator = make_simulator(graph, make_cluster([1 * MB] * 2), 2)
    ours = staged((2, 2), (0, 1), ((0,), (1,)), micro_batches=2, schedule="gpipe")
    other = replace(ours, comm=CommPlan(transport="nccl"))
    assert simulator.forecast(ours).step_range_s is None
    low_s, high_s = simulator.forecast(other).step_range_s
    assert low_s == simulator.step_s(other) == simulator.step_s(ours)
    # F0 F1 a second each, and a message after each: 0-1, 1-2 | 2-3, 3-4; the other stage: 2-3, 4-5, B 5-7, send 7-8, B 8-10,
    # send 10-11; then the first: B 8-10, B 11-13. Overlapped: F 0-2, F 2-3 and 3-4, B 4-6 and 6-8, sent by 7 and 9, B 7-9, 9-11.
    assert (low_s, high_s) == exact((11.0, 13.0))


def test_gradients_accumulate_without_stages():
    """Eight samples in four passes: a fixed cost each, memory of two samples, and one exchange."""
    graph = make_graph(1, saved=5.0)
    cluster = make_cluster([10 * MB] * 2)
    launched = tuple(
        replace(host, devices=tuple(replace(d, launch_s=0.5) for d in host.devices)) for host in cluster.hosts
    )
    simulator = make_simulator(graph, replace(cluster, hosts=launched), 16)
    once = plan_of(8, 8)
    four = replace(once, batch=BatchPlan(samples=(8, 8), accumulate=4))
    four.validate(num_ranks=2, global_batch=16)
    assert simulator.step_s(once) == exact(8 * 3 + 1.0 + 1.0)
    assert simulator.step_s(four) == exact(8 * 3 + 4 * 1.0 + 1.0)
    peaks = [simulator.simulate(plan).run.peak_bytes.tolist() for plan in (once, four)]
    assert peaks == exact(np.array([[40.0, 40.0], [10.0, 10.0]]))
    with pytest.raises(SpecError, match="state accumulate in the workload"):
        four.check_runnable()
    assert once.fingerprint() == replace(once, batch=BatchPlan(samples=(8, 8), accumulate=1)).fingerprint()


def test_doubts_compare_what_is_computed_at_once():
    """Measured from 1 to 16 samples: 64 in 8 micro-batches are 8 at a time; 8 in 16 would be half a sample."""
    graph = make_graph(2)
    simulator = profiled(graph, real_cluster(2), profile_of(graph, ranks=2), 64)
    notes = simulator.costs.notes
    inside = staged((64, 64), (0, 1), ((0,), (1,)), micro_batches=8)
    assert simulator.forecast(inside).doubts == notes
    beyond = staged((64, 64), (0, 1), ((0,), (1,)), micro_batches=2)
    assert any("rank 0: 32 samples, measured from 1 to 16" in doubt for doubt in simulator.forecast(beyond).doubts)
    accumulated = Plan(batch=BatchPlan(samples=(32, 32), accumulate=2))
    assert simulator.forecast(accumulated).doubts == notes


def test_an_island_makes_tensor_parallel_sums_faster():
    graph = make_graph(2, param_bytes=0, output=1.0 * MB)
    graph = replace(graph, ops=tuple(replace(op, factor_shapes=((10, 10),)) for op in graph.ops))
    device = Link(up_bytes_per_s=1 * MB, down_bytes_per_s=1 * MB)
    island = Link(up_bytes_per_s=4 * MB, down_bytes_per_s=4 * MB)
    cluster = make_cluster([1 * MB], ranks=[4])
    (host,) = cluster.hosts
    fabric = Fabric(device=device, islands=((0, 1), (2, 3)), island=island)
    simulator = make_simulator(graph, replace(cluster, hosts=(replace(host, fabric=fabric),)), 2)
    inside = staged((1,) * 4, (0,), ((0, 1, 2, 3),), tensor_parallel=2)
    across = staged((1,) * 4, (0,), ((0, 2, 1, 3),), tensor_parallel=2)
    assert simulator.step_s(inside) == exact(3 + 2 * 0.25)
    assert simulator.step_s(across) == exact(3 + 2 * 1.0)


def test_replicas_do_not_wait_for_each_other():
    """Two pipelines of two stages, one on devices of half the speed: each micro-batch follows its own, and the sum waits."""
    graph = make_graph(2, param_bytes=0, output=1.0)
    cluster = make_cluster([1e15] * 4)
    half = tuple(
        replace(host, devices=tuple(replace(d, flops_per_s=d.flops_per_s / (1 + number % 2)) for d in host.devices))
        for number, host in enumerate(cluster.hosts)
    )
    plan = staged((2, 2, 2, 2), (0, 1), ((0, 1), (2, 3)), micro_batches=2, schedule="gpipe")
    simulated = make_simulator(graph, replace(cluster, hosts=half), 4).simulate(plan)
    ends = [float(simulated.run.end_s[simulated.tasks.device == rank].max()) for rank in range(4)]
    # Forward 0-1 1-2 | 1-2 2-3, backward 3-5 5-7 | 5-7 7-9; twice as long on the other.
    assert ends == pytest.approx([9.0, 18.0, 7.0, 14.0], rel=1e-6)
