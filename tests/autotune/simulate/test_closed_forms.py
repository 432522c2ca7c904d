"""Predictions against closed forms, to float accuracy: collectives, pipelines, credit and priority, cross-step overlap."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from autotune.results.store.record import WorkloadInfo
from autotune.simulate.collectives import (
    all_reduce_latency_s,
    all_reduce_loads,
    owned_shares,
    plan_shares,
    server_shares,
    shard_loads,
)
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.factors import worthwhile_factors
from autotune.simulate.limit import step_limit
from autotune.simulate.pipeline import boundary_bytes
from autotune.simulate.simulator import Simulator
from autotune.workloads.cluster import Cluster, Device, Host, Link, load_cluster
from autotune.workloads.graph import Edge, Op, OpGraph, Parameter
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, PipelinePlan, Plan
from autotune.workloads.stage_order import as_text

MB = 10**6


def exact(value):
    return pytest.approx(value, rel=1e-9)


def make_graph(num_ops=4, *, param_bytes=10 * MB, flops=1e9, saved=0.0, output=1000.0):
    """Ops of 1 s forward and 2 s backward per sample on a device of 1 GFLOP/s, with one parameter each."""
    ops = tuple(
        Op(
            name=f"op{index}",
            kind="Linear",
            num_calls=1,
            flops_per_sample=flops,
            fixed_bytes=0.0,
            bytes_per_sample=0.0,
            param_bytes=param_bytes,
            backward_factor=2.0,
            saved_bytes_per_sample=saved,
            output_bytes_per_sample=output,
        )
        for index in range(num_ops)
    )
    parameters = tuple(
        Parameter(name=f"op{index}.weight", op=f"op{index}", num_bytes=param_bytes) for index in range(num_ops)
    )
    return OpGraph(ops=ops, saved_bytes_per_sample=saved * num_ops, parameters=parameters)


def make_cluster(speeds, *, ranks=None, flops=1e9, latency_s=0.0, emulation="paced"):
    """A host for each speed, of one rank or as many as `ranks` says."""
    hosts = tuple(
        Host(
            name=f"host{index}",
            devices=(Device(name=f"device{index}", flops_per_s=flops),) * (ranks[index] if ranks else 1),
            link=Link(up_bytes_per_s=speed, down_bytes_per_s=speed, latency_s=latency_s),
        )
        for index, speed in enumerate(speeds)
    )
    return Cluster(name="closed-form", hosts=hosts, emulation=emulation)


def make_simulator(graph, cluster, global_batch):
    info = WorkloadInfo(
        name="closed-form",
        options={},
        fingerprint="",
        global_batch=global_batch,
        param_bytes=graph.param_bytes,
        flops_per_sample=graph.flops_per_sample,
    )
    return Simulator(info, graph, cost_model(graph, cluster))


def plan_of(*samples, **comm):
    return Plan(batch=BatchPlan(samples=samples), comm=CommPlan(**comm))


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_ring_all_reduce(num_ranks):
    """2(N-1)/N of the bytes over the slowest link, and 2(N-1) latencies, after the backward pass of the only op."""
    speeds = [125 * MB] * (num_ranks - 1) + [25 * MB]
    graph, cluster = make_graph(1), make_cluster(speeds, latency_s=0.001)
    step_s = make_simulator(graph, cluster, num_ranks).step_s(plan_of(*[1] * num_ranks, bucket_bytes=10**9))
    ring_s = 2 * (num_ranks - 1) / num_ranks * 10 * MB / (25 * MB)
    assert step_s == exact(3.0 + ring_s + 2 * (num_ranks - 1) * 0.001)


def test_tree_all_reduce_has_fewer_rounds():
    cluster = make_cluster([125 * MB] * 8, latency_s=0.001)
    assert all_reduce_latency_s("ring", cluster) == exact(0.014)
    assert all_reduce_latency_s("tree", cluster) == exact(0.006)
    assert all_reduce_latency_s("shards", cluster) == exact(0.002)


def test_shards_on_uneven_links_reach_the_bound_of_the_slow_host():
    """50 MB, one host at 200 Mbit/s among 1 Gbit/s: a ring takes 3,000 ms, the cut bound is 2,000 ms."""
    cluster = make_cluster([125 * MB, 125 * MB, 125 * MB, 25 * MB])
    graph = make_graph(1, param_bytes=50 * MB)
    simulator = make_simulator(graph, cluster, 4)
    assert simulator.step_s(plan_of(1, 1, 1, 1, bucket_bytes=10**9)) == exact(3.0 + 3.0)
    assert simulator.step_s(plan_of(1, 1, 1, 1, bucket_bytes=10**9, collective="shards")) == exact(3.0 + 2.0)
    assert simulator.limit().step_s == exact(3.0)  # which computing takes, and the links need not add to it
    pair = replace(cluster, hosts=cluster.hosts[2:])  # either host alone takes 2.5 s
    assert step_limit([0.25] * 2, pair, graph, global_batch=10).network_s == exact(2.0)
    assert owned_shares(cluster) == exact([1 / 3, 1 / 3, 1 / 3, 0.0])
    assert owned_shares(cluster)[3] == 0.0


def slowest_s(host_of_rank, shares, speeds):
    """When the last host has sent its bytes, of one byte, message by message."""
    ranks, sent = range(len(shares)), [0.0] * len(speeds)
    for rank, owner in itertools.permutations(ranks, 2):
        for source, target in ((rank, owner), (owner, rank)):
            if host_of_rank[source] != host_of_rank[target]:
                sent[host_of_rank[source]] += shares[owner]
    return max(bytes_ / speed for bytes_, speed in zip(sent, speeds, strict=True))


@pytest.mark.parametrize("speeds", [[1, 1, 1, 1], [1, 2, 3, 4], [1, 1, 1, 10], [1, 5, 5], [3, 1], [1, 4, 4, 4, 4]])
def test_no_other_shares_are_faster(speeds):
    """Against brute force over a grid of shares, on hosts of one rank."""
    cluster = make_cluster(speeds)
    loads = shard_loads(cluster.host_of_rank, owned_shares(cluster), 1.0)
    ours = max(load.up_bytes / speed for load, speed in zip(loads, speeds, strict=True))
    others, grid = len(speeds) - 1, 12
    best = min(
        max((1 - w / grid + w / grid * others) / speed for w, speed in zip(shares, speeds, strict=True))
        for shares in itertools.product(range(grid + 1), repeat=len(speeds))
        if sum(shares) == grid
    )
    assert ours <= best + 1e-12
    assert sum(owned_shares(cluster)) == exact(1.0)
    assert min(owned_shares(cluster)) >= 0.0


@pytest.mark.parametrize("speeds", [[1, 1, 1], [1, 2, 4], [5, 1, 1], [9, 1, 4], [1, 9, 3]])
@pytest.mark.parametrize("ranks", [[2, 1, 1], [1, 2, 3], [4, 1, 1], [2, 2, 2], [1, 1, 5]])
def test_no_other_shares_of_hosts_are_faster(speeds, ranks):
    """Against brute force over a grid, where hosts have several ranks; a host of most ranks had better own a lot."""
    cluster = make_cluster(speeds, ranks=ranks)
    host_of_rank, shares = cluster.host_of_rank, owned_shares(cluster)
    loads = shard_loads(host_of_rank, shares, 1.0)
    ours = max(load.down_bytes / speed for load, speed in zip(loads, speeds, strict=True))
    grid = 24
    best = min(
        slowest_s(host_of_rank, [of_host[host] / grid / ranks[host] for host in host_of_rank], speeds)
        for of_host in itertools.product(range(grid + 1), repeat=len(speeds))
        if sum(of_host) == grid
    )
    assert ours == exact(slowest_s(host_of_rank, shares, speeds))
    assert ours <= best + 1e-12
    assert sum(shares) == exact(1.0)
    assert min(shares) >= 0.0


def test_ranks_of_one_host_own_alike_and_their_messages_all_cross():
    """Two hosts of two ranks: each of four ranks sends half of its bytes across and receives half of the sums, for any owners."""
    cluster = load_cluster("two-fast-two-slow")
    shares = owned_shares(cluster)
    assert shares == exact([0.25] * 4)
    loads = shard_loads(cluster.host_of_rank, shares, 8.0)
    assert [(load.up_bytes, load.down_bytes) for load in loads] == [exact((16.0, 16.0))] * 2


def test_shares_are_equal_where_no_link_is_stated():
    bare = make_cluster([1, 1, 1], ranks=[1, 2, 3])
    bare = replace(bare, hosts=tuple(replace(host, link=None) for host in bare.hosts))
    assert owned_shares(bare) == exact([1 / 6] * 6)
    assert owned_shares(load_cluster("this-machine").for_ranks(4)) == exact([0.25] * 4)


def test_a_host_without_a_link_of_its_own_is_fast():
    mixed = make_cluster([1, 1, 1])
    mixed = replace(mixed, hosts=(replace(mixed.hosts[0], link=None), *mixed.hosts[1:]))
    assert owned_shares(mixed) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("servers", [(0,), (1, 3), (0, 1, 2, 3)])
def test_servers_are_shards_of_equal_owners(servers):
    cluster = make_cluster([1, 1, 1], ranks=[1, 2, 1])
    shares = server_shares(4, servers)
    assert [rank for rank, share in enumerate(shares) if share > 0] == list(servers)
    loads = shard_loads(cluster.host_of_rank, shares, 1.0)
    assert max(load.up_bytes for load in loads) == exact(slowest_s(cluster.host_of_rank, shares, [1, 1, 1]))


def test_even_shards_on_even_links_take_as_long_as_a_ring():
    cluster = make_cluster([100.0] * 4)
    ring, shards = (all_reduce_loads(kind, cluster, 1.0) for kind in ("ring", "shards"))
    assert [load.up_bytes for load in shards] == exact([load.up_bytes for load in ring])


def test_shards_are_owned_as_the_plan_says_or_as_the_links_call_for():
    """10 MB on four hosts, one of them at a fifth: that host sends it once at best, and 1.5 times if all own alike."""
    cluster = make_cluster([10 * MB] * 3 + [2 * MB])
    simulator = make_simulator(make_graph(1), cluster, 4)
    as_called_for, even, spared = (
        simulator.step_s(plan_of(1, 1, 1, 1, collective="shards", shares=shares))
        for shares in ((), (0.25,) * 4, plan_shares(cluster))
    )
    assert spared == pytest.approx(as_called_for, rel=1e-2)
    assert even - as_called_for == exact(0.5 * 10 / 2)


def test_shares_of_a_plan_sum_to_one_exactly():
    for speeds in ([1, 1, 1], [1, 2, 3, 5, 7], [100, 100, 100, 1], [3, 1]):
        shares = plan_shares(make_cluster(speeds))
        assert sum(shares) == 1.0
        assert max(map(abs, np.subtract(shares, owned_shares(make_cluster(speeds))))) < len(speeds) / 1024


def test_buckets_overlap_with_backward():
    """Four ops, a bucket each of 10 MB at 10 MB/s on two ranks (1 s each): all but the last are hidden by 2 s of backward."""
    simulator = make_simulator(make_graph(4), make_cluster([10 * MB] * 2), 2)
    assert simulator.step_s(plan_of(1, 1, bucket_bytes=10 * MB)) == exact(4 * 1 + 4 * 2 + 1)
    assert simulator.step_s(plan_of(1, 1, bucket_bytes=10**9)) == exact(12 + 4)


def test_a_slow_network_is_the_sum_of_its_buckets():
    """3 s a bucket against 2 s of backward each: the first is ready at 4 + 2, then the link never rests."""
    simulator = make_simulator(make_graph(4), make_cluster([10 * MB / 3] * 2), 2)
    assert simulator.step_s(plan_of(1, 1, bucket_bytes=10 * MB)) == exact(4 + 2 + 4 * 3)


def test_the_slowest_rank_sets_the_pace_and_moving_its_samples_helps():
    cluster = make_cluster([1e15] * 2)
    slow = replace(cluster.hosts[1], devices=(Device(name="slow", flops_per_s=0.5e9),))
    simulator = make_simulator(make_graph(2), replace(cluster, hosts=(cluster.hosts[0], slow)), 6)
    assert simulator.step_s(plan_of(3, 3)) == exact(3 * 2 * 3 * 2)
    assert simulator.step_s(plan_of(4, 2)) == exact(4 * 2 * 3)


def test_codec_halves_the_bytes():
    simulator = make_simulator(make_graph(1), make_cluster([10 * MB] * 2), 2)
    plain = plan_of(1, 1)
    assert simulator.step_s(plain) == exact(3 + 1)
    assert simulator.step_s(replace(plain, compression=CompressionPlan(codec="fp16"))) == exact(3 + 0.5)


def test_ddp_default_closes_its_first_bucket_at_one_mebibyte():
    simulator = make_simulator(make_graph(4), make_cluster([10 * MB] * 2), 2)
    assert simulator.wire_bytes(plan_of(1, 1, reducer="ddp")) == [10 * MB, 30 * MB]


def test_cross_step_overlap_hides_what_a_barrier_cannot():
    """Four ops, 3 s of link and 2 s of backward each; gradients of op 3, 2, 1, 0 are there at 6, 8, 10, 12.

    One part at a time, the most urgent first: op 3 travels 6-9, op 2 9-12, then op 0 12-15 before op 1 15-18. With a barrier
    a step takes 18 s. With cross-step overlap, op 0's next forward pass runs 15-16, op 1's waits until 18, and the pass is done at 21,
    which is 17 s after the first one: so is every step from then on.
    """
    simulator = make_simulator(make_graph(4), make_cluster([10 * MB / 3] * 2), 2)
    common = {"reducer": "scheduled", "partition_bytes": 10 * MB, "credit_bytes": 1}
    assert simulator.step_s(plan_of(1, 1, **common)) == exact(18.0)
    assert simulator.step_s(plan_of(1, 1, **common, crosses_steps=True)) == exact(17.0)
    starts = {span.op: span.end_s for span in simulator.timeline(plan_of(1, 1, **common)).spans if span.track == "comm"}
    assert [starts[f"all-reduce {unit}"] for unit in range(4)] == exact([9.0, 12.0, 18.0, 15.0])


def test_without_cross_step_overlap_priority_changes_nothing():
    """A barrier waits for the last part, whichever it is."""
    simulator = make_simulator(make_graph(4), make_cluster([10 * MB / 3] * 2), 2)
    fifo = simulator.step_s(plan_of(1, 1, bucket_bytes=10 * MB))
    by_priority = simulator.step_s(plan_of(1, 1, reducer="scheduled", partition_bytes=10 * MB, credit_bytes=1))
    assert fifo == exact(by_priority)


def test_small_partitions_let_the_urgent_overtake():
    """Priority without partitions waits for transfers in flight; with small partitions the first layer's gradient completes sooner."""
    graph, cluster = make_graph(2, param_bytes=40 * MB), make_cluster([10 * MB] * 2)
    simulator = make_simulator(graph, cluster, 2)
    step_s = {
        size: simulator.step_s(
            plan_of(1, 1, reducer="scheduled", partition_bytes=size * MB, credit_bytes=1, crosses_steps=True)
        )
        for size in (40, 1)
    }
    assert step_s[1] < step_s[40]


def pipeline_plan(num_stages, micro_batches, schedule, *, batch):
    pipeline = PipelinePlan(
        first_ops=tuple(range(num_stages)),
        stage_ranks=tuple((rank,) for rank in range(num_stages)),
        micro_batches=micro_batches,
        schedule=schedule,
    )
    return Plan(batch=BatchPlan(samples=(batch,) * num_stages), pipeline=pipeline)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "parts"), [(2, 2), (4, 8), (4, 4), (3, 12), (1, 4), (8, 2)])
def test_the_bubble_of_classic_schedules(schedule, stages, parts):
    """m micro-batches of 1 s forward and 2 s backward over p stages: 3(m + p - 1) s, bubble (p - 1)/(m + p - 1)."""
    simulator = make_simulator(make_graph(stages, output=0.0), make_cluster([1e18] * stages), parts)
    step_s = simulator.step_s(pipeline_plan(stages, parts, schedule, batch=parts))
    assert step_s == exact(3 * (parts + stages - 1))
    assert 1 - 3 * parts / step_s == exact((stages - 1) / (parts + stages - 1))


@pytest.mark.parametrize(("stages", "parts"), [(4, 8), (3, 12), (8, 4)])
def test_memory_of_classic_schedules(stages, parts):
    """GPipe holds every micro-batch's activations, 1F1B at most p - s of them."""
    simulator = make_simulator(make_graph(stages, saved=7.0, output=0.0), make_cluster([1e18] * stages), parts)
    for schedule, held in (
        ("gpipe", [parts] * stages),
        ("1f1b", [min(stages - stage, parts) for stage in range(stages)]),
    ):
        run = simulator.simulate(pipeline_plan(stages, parts, schedule, batch=parts)).run
        assert list(run.peak_bytes) == exact([7.0 * count for count in held])


def test_a_pipeline_pays_for_its_links():
    """Two stages, one micro-batch: activations of 10 MB at 10 MB/s once forward, once backward."""
    simulator = make_simulator(make_graph(2, output=10.0 * MB), make_cluster([10 * MB] * 2), 1)
    assert simulator.step_s(pipeline_plan(2, 1, "gpipe", batch=1)) == exact(2 * 3 + 2 * 1)


def test_replicas_of_a_stage_share_the_batch_and_add_up():
    """One stage on two ranks is data parallelism: half the samples, and a ring of the parameters at the end."""
    simulator = make_simulator(make_graph(1), make_cluster([10 * MB] * 2), 2)
    pipeline = PipelinePlan(first_ops=(0,), stage_ranks=((0, 1),), micro_batches=1)
    assert simulator.step_s(Plan(batch=BatchPlan(samples=(1, 1)), pipeline=pipeline)) == exact(3 + 1)


@pytest.mark.parametrize(("stages", "parts"), [(2, 4), (4, 8), (3, 12)])
def test_zero_bubble_leaves_what_its_paper_says(stages, parts):
    """Forward, input and weight parts of 1 s each: H1 idles (p - 1)·(F + B - W) = p - 1 seconds on its first stage, 1F1B thrice that."""
    simulator = make_simulator(make_graph(stages, output=0.0), make_cluster([1e18] * stages), parts)
    step_s = simulator.step_s(pipeline_plan(stages, parts, "zero-bubble", batch=parts))
    assert step_s == exact(3 * parts + stages - 1)
    assert step_s < simulator.step_s(pipeline_plan(stages, parts, "1f1b", batch=parts))


def test_a_written_order_is_followed():
    simulator = make_simulator(make_graph(3, saved=7.0), make_cluster([10 * MB] * 3), 6)
    for schedule in ("gpipe", "1f1b", "zero-bubble"):
        classic = pipeline_plan(3, 6, schedule, batch=6)
        order = tuple(map(as_text, classic.pipeline.passes()))
        written = replace(classic, pipeline=replace(classic.pipeline, schedule="searched", order=order))
        assert simulator.step_s(written) == exact(simulator.step_s(classic))
        peaks = [simulator.simulate(plan).run.peak_bytes for plan in (written, classic)]
        assert list(peaks[0]) == list(peaks[1])


def tied(graph):
    """The last op has the first one's parameter as its own."""
    last = graph.ops[-1]
    shared = replace(graph.parameters[0], also=(last.name,))
    ops = (*graph.ops[:-1], replace(last, param_bytes=0))
    return replace(graph, ops=ops, parameters=(shared, *graph.parameters[1:-1]))


def test_tied_layers_on_two_stages_are_held_twice_and_summed():
    """10 MB each way at 10 MB/s at the end of the step; both stages hold them, and a copy to be summed."""
    graph = tied(make_graph(2, output=0.0))
    simulator = make_simulator(replace(graph, held_bytes=2 * 10 * MB), make_cluster([10 * MB] * 2), 1)
    plan = pipeline_plan(2, 1, "gpipe", batch=1)
    assert simulator.step_s(plan) == exact(2 * 3 + 1)
    assert list(simulator.peak_memory_bytes(plan, simulator.simulate(plan))) == exact([30 * MB, 30 * MB])


def test_a_simulated_pipeline_is_a_timetable():
    simulator = make_simulator(make_graph(2, output=10.0 * MB), make_cluster([10 * MB] * 2), 2)
    plan = pipeline_plan(2, 2, "zero-bubble", batch=2)
    table = simulator.stage_table(plan)
    first = [(slot.block, slot.microbatch, slot.start_s) for slot in table.order[0]]
    assert first[:3] == [("f0", 0, exact(0)), ("f0", 1, exact(1)), ("b0.input", 0, exact(5))]
    named = [span.op for span in simulator.timeline(plan).spans if span.track == "compute" and span.rank == 0]
    assert named[:3] == ["f0 micro-batch 0", "f0 micro-batch 1", "b0.input micro-batch 0"]
    assert {block.name for block in table.graph.blocks} == {
        f"{name}{stage}{part}" for stage in (0, 1) for name, part in (("f", ""), ("b", ".input"), ("b", ".weight"))
    }


def test_tensor_parallel_halves_the_work():
    simulator = make_simulator(make_graph(1), make_cluster([1e18] * 2), 1)
    pipeline = PipelinePlan(first_ops=(0,), stage_ranks=((0, 1),), micro_batches=1, tensor_parallel=2)
    assert simulator.step_s(Plan(batch=BatchPlan(samples=(1, 1)), pipeline=pipeline)) == exact(1.5)


def test_a_server_shares_its_link():
    """Rank 0's host serves: rank 1 pushes 10 MB and pulls 10 MB, and sums come back while gradients still go."""
    simulator = make_simulator(make_graph(1), make_cluster([10 * MB] * 2), 2)
    assert simulator.step_s(plan_of(1, 1, collective="server", servers=(0,))) == exact(3 + 1)


def test_three_workers_of_one_server_wait_for_its_downlink():
    simulator = make_simulator(make_graph(1), make_cluster([10 * MB] * 4), 4)
    step_s = simulator.step_s(plan_of(1, 1, 1, 1, collective="server", servers=(0,)))
    assert step_s == exact(3 + 3)


def factored_graph(rows):
    """One Linear layer of 1000 outputs and 1500 inputs (6 MB), `rows` of them per sample."""
    graph = make_graph(1, param_bytes=6 * MB, flops=2.0 * rows * 1000 * 1500)
    return replace(graph, ops=(replace(graph.ops[0], factor_shapes=((1000, 1500),)),))


def test_factors_are_rows_to_every_rank_and_a_product_of_the_others_rows():
    """Rank 0 has 3 rows and rank 1 one: 30 kB and 10 kB over 10 kB/s, and products of 1 and 3 rows of 3 MFLOP each."""
    simulator = make_simulator(factored_graph(1), make_cluster([0.01 * MB] * 2), 4)
    comm = CommPlan(reducer="scheduled")
    plan = Plan(batch=BatchPlan(samples=(3, 1)), comm=comm, compression=CompressionPlan(factors=("op0",)))
    compute_s = 3 * 3 * 3e-3  # the slower rank: forward once, backward twice
    assert simulator.step_s(plan) == exact(compute_s + 3.0 + 3 * 3e-3)


@pytest.mark.parametrize(("rows", "pays"), [(1, True), (590, True), (610, False)])
def test_factors_pay_below_their_break_even(rows, pays):
    """Two ranks of one sample each: an all-reduce moves 6 MB both ways, factors 10 kB a row."""
    graph = factored_graph(rows)
    cluster = make_cluster([1 * MB] * 2, flops=1e15)
    assert worthwhile_factors(graph, cluster, (1, 1)) == (("op0",) if pays else ())


def test_slow_devices_would_rather_send():
    graph = factored_graph(100)
    assert worthwhile_factors(graph, make_cluster([1 * MB] * 2, flops=1e12), (1, 1)) == ("op0",)
    assert worthwhile_factors(graph, make_cluster([1 * MB] * 2, flops=1e7), (1, 1)) == ()


def test_averaging_every_fourth_step_moves_a_quarter():
    simulator = make_simulator(make_graph(1), make_cluster([10 * MB] * 2), 2)
    step_s = simulator.step_s(plan_of(1, 1, reducer="averaged", average_every=4))
    assert step_s == exact(3 + 0.25)


@pytest.mark.parametrize(
    ("codec", "wire_bytes"), [("none", 10 * MB), ("fp16", 5 * MB), ("topk", 0.01 * 2.5e6 * 8), ("int8", None)]
)
def test_codecs_put_their_rounds_on_the_links(codec, wire_bytes):
    """Two ranks: a sum moves its bytes once each way, so does a gather; int8's slice and its sum are half of it each."""
    simulator = make_simulator(make_graph(1), make_cluster([1 * MB] * 2), 2)
    plan = Plan(
        batch=BatchPlan(samples=(1, 1)),
        comm=CommPlan(reducer="scheduled", partition_bytes=10**9),
        compression=CompressionPlan(codec=codec),
    )
    if wire_bytes is None:
        half = 1_250_000
        wire_bytes = 2 * (half + -(-half // 256) * 4)
    assert simulator.step_s(plan) == pytest.approx(3 + wire_bytes / MB, rel=1e-6)


def test_no_plan_beats_the_limit():
    graph, cluster = make_graph(3, saved=1.0), load_cluster("mixed-both4")
    simulator = make_simulator(graph, cluster, 16)
    limit = simulator.limit().step_s
    for collective, bucket in itertools.product(("ring", "tree", "shards"), (10 * MB, 10**9)):
        for samples in ((4, 4, 4, 4), (7, 5, 3, 1), (13, 1, 1, 1)):
            assert simulator.step_s(plan_of(*samples, collective=collective, bucket_bytes=bucket)) >= limit * (
                1 - 1e-12
            )


def test_the_timeline_is_the_run():
    simulator = make_simulator(make_graph(3), make_cluster([10 * MB] * 2), 2)
    plan = plan_of(1, 1, bucket_bytes=10 * MB)
    timeline = simulator.timeline(plan)
    assert max(span.end_s for span in timeline.spans) == exact(simulator.step_s(plan))
    assert timeline.total_s("forward") == exact(2 * 3 * 1.0)
    assert timeline.total_s("backward") == exact(2 * 3 * 2.0)
    assert {span.op for span in timeline.spans if span.track == "comm"} == {f"all-reduce {unit}" for unit in range(3)}


def test_predictions_are_deterministic():
    graph, cluster = make_graph(4), load_cluster("mixed-both4")
    plan = plan_of(5, 4, 4, 3, bucket_bytes=10 * MB)
    runs = [make_simulator(graph, cluster, 16).simulate(plan).run.end_s for _ in range(2)]
    assert np.array_equal(runs[0], runs[1])


def test_what_crosses_a_cut():
    """op0 feeds op1 and, past it, op2; the cut before op2 is crossed by both."""
    graph = make_graph(3, output=5.0)
    edges = (
        Edge(source="op0", target="op1", bytes_per_sample=7.0),
        Edge(source="op0", target="op2", bytes_per_sample=3.0),
        Edge(source="op1", target="op2", bytes_per_sample=2.0),
    )
    assert boundary_bytes(graph, 1) == 5.0
    assert [boundary_bytes(replace(graph, edges=edges), cut) for cut in (1, 2)] == [7.0, 5.0]
