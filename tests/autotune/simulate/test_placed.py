"""Predictions of placed plans in closed form."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autotune.simulate.simulator import Simulator
from autotune.workloads.graph import Edge, Parameter
from autotune.workloads.plan import BatchPlan, Plan
from autotune.workloads.plan.op_groups import OpGroup, PlacementPlan
from autotune.workloads.tensor_graph.operations import operations_of
from tests.autotune.simulate.test_closed_forms import MB, exact, make_cluster, make_graph, make_simulator, plan_of


def simulator_of(graph, cluster, global_batch):
    made = make_simulator(graph, cluster, global_batch)
    return Simulator(made.info, graph, made.costs, operations=operations_of(graph))


def placed(num_ranks, *groups, micro_batches=1):
    """`groups`: ops, ranks, samples."""
    placement = PlacementPlan(
        groups=tuple(OpGroup(ops=ops, ranks=ranks, samples=samples) for ops, ranks, samples in groups),
        micro_batches=micro_batches,
    )
    return Plan(batch=BatchPlan(samples=placement.most_samples(num_ranks)), placement=placement)


def test_one_group_on_one_device_only_computes():
    simulator = simulator_of(make_graph(4), make_cluster([MB, MB]), 6)
    assert simulator.step_s(placed(2, ((0, 1, 2, 3), (1,), (6,)))) == exact(6 * 4 * 3.0)


@pytest.mark.parametrize("split", [(2, 2), (3, 1), (1, 2, 5), (4, 1, 1, 2)])
@pytest.mark.parametrize("ranks_per_host", [1, 2])
def test_one_group_everywhere_is_data_parallelism_that_sums_everything_at_the_end(split, ranks_per_host):
    cluster = make_cluster(
        [7 * MB, 5 * MB, 3 * MB, 2 * MB][: len(split)], ranks=[ranks_per_host] * len(split), latency_s=0.001
    )
    split = tuple(count for count in split for _ in range(ranks_per_host))
    size, total = len(split), sum(split)
    simulator = simulator_of(make_graph(3, output=0.0), cluster, total)
    shares = tuple([1 / 8] * 8)[:size] if size == 8 else (1 / size,) * size
    if abs(sum(shares) - 1) > 1e-12:
        pytest.skip("shares of a plan sum to one")
    own = plan_of(*split, bucket_bytes=10**12, collective="shards", shares=shares)
    found = simulator.step_s(placed(size, ((0, 1, 2), tuple(range(size)), split)))
    assert found == exact(simulator.step_s(own))
    assert simulator.outcome(placed(size, ((0, 1, 2), tuple(range(size)), split))).busy_s == exact(
        simulator.outcome(own).busy_s
    )


def test_a_chain_of_two_groups_is_the_sum_of_its_parts():
    """Three samples: 2 ops of 1 s, 3 MB over 1.5 MB/s, 1 op of 1 s, its backward of 2 s, 3 MB back, 2 ops of 2 s."""
    simulator = simulator_of(make_graph(3, output=1.0 * MB), make_cluster([1.5 * MB] * 2, latency_s=0.25), 3)
    plan = placed(2, ((0, 1), (0,), (3,)), ((2,), (1,), (3,)))
    message_s = 3 / 1.5 + 0.25
    assert simulator.step_s(plan) == exact(3 * 2 + message_s + 3 * 1 + 3 * 2 + message_s + 3 * 4)
    assert simulator.outcome(plan).busy_s.tolist() == exact([18, 9])


def test_micro_batches_overlap_and_the_oldest_goes_first():
    """Two ops of 1 s and 2 s on two devices, two micro-batches of one sample, free links: forwards at 0 and 1 and at 1,
    backward of the last from 2 to 4, then the second micro-batch; the first device ends at 9.
    """
    simulator = simulator_of(make_graph(2, output=0.0), make_cluster([MB] * 2), 2)
    plan = placed(2, ((0,), (0,), (2,)), ((1,), (1,), (2,)), micro_batches=2)
    assert simulator.step_s(plan) == exact(1 + 3 + 3 + 2)


def test_samples_go_to_the_ranks_that_take_them():
    """Shares 4 and 2, then 1 and 5: rank 0 first computes and sends the 3 samples that rank 1 takes. Their gradients come back
    after 3 s of forward and 6 s of backward there, and another 3 s on the link.
    """
    simulator = simulator_of(make_graph(2, output=1.0 * MB, param_bytes=0), make_cluster([MB] * 2), 6)
    plan = placed(2, ((0,), (0, 1), (4, 2)), ((1,), (0, 1), (1, 5)))
    assert simulator.step_s(plan) == exact(3 + 3 + 3 + 6 + 3 + 6)


def test_a_tensor_is_sent_to_each_segment_that_reads_it():
    """Op 0 is read by 1 and 2, which are on the other rank in groups of their own: 1 MB twice."""
    graph = replace(
        make_graph(3, param_bytes=0),
        edges=tuple(Edge(source=a, target=b, bytes_per_sample=1.0 * MB) for a, b in (("op0", "op1"), ("op0", "op2"))),
    )
    simulator = simulator_of(graph, make_cluster([MB] * 2), 1)
    assert simulator.step_s(placed(2, ((0,), (0,), (1,)), ((1, 2), (1,), (1,)))) == exact(1 + 1 + 2 + 4 + 1 + 2)
    apart = placed(2, ((0,), (0,), (1,)), ((1,), (1,), (1,)), ((2,), (1,), (1,)))
    assert simulator.step_s(apart) == exact(1 + 1 + 1 + 1 + 2 + 2 + 1 + 2)


def test_tied_parameters_are_summed_over_the_ranks_of_both_groups():
    graph = make_graph(2, output=0.0, param_bytes=0)
    graph = replace(
        graph,
        ops=(replace(graph.ops[0], param_bytes=4 * MB), graph.ops[1]),
        parameters=(Parameter(name="op0.weight", op="op0", num_bytes=4 * MB, also=("op1",)),),
    )
    simulator = simulator_of(graph, make_cluster([MB] * 2), 1)
    assert simulator.step_s(placed(2, ((0,), (0,), (1,)), ((1,), (1,), (1,)))) == exact(1 + 3 + 2 + 4)


def test_memory_is_that_of_what_a_rank_holds():
    graph = replace(make_graph(2, saved=10.0, output=3.0), held_bytes=2 * 20 * MB)
    simulator = simulator_of(graph, make_cluster([MB] * 3), 8)
    found = simulator.outcome(placed(3, ((0,), (0,), (8,)), ((1,), (1, 2), (6, 2)))).peak_memory_bytes
    assert found.tolist() == exact([20 * MB + 80, 20 * MB + 10 * MB + 78, 20 * MB + 10 * MB + 26])


def random_plan(generator, num_ops, num_ranks, total):
    micro_batches = generator.choice([count for count in (1, 2, 4) if total % count == 0])
    groups = []
    group_of = [generator.randrange(4) for _ in range(num_ops)]
    for group in sorted(set(group_of)):
        size = generator.randint(1, min(num_ranks, total // micro_batches))
        cuts = sorted(generator.sample(range(1, total // micro_batches), size - 1))
        samples = tuple(
            (b - a) * micro_batches for a, b in zip([0, *cuts], [*cuts, total // micro_batches], strict=True)
        )
        ops = tuple(op for op in range(num_ops) if group_of[op] == group)
        groups.append((ops, tuple(generator.sample(range(num_ranks), size)), samples))
    return placed(num_ranks, *groups, micro_batches=micro_batches)


@pytest.mark.parametrize("seed", range(30))
def test_no_plan_is_faster_than_the_bound_nor_holds_less_than_its_work(seed):
    generator = random.Random(seed)
    num_ops, num_ranks, total = generator.randint(2, 7), generator.randint(2, 5), 8
    cluster = make_cluster(
        [generator.choice([MB, 100 * MB]) for _ in range(num_ranks)], emulation=generator.choice(["paced", "none"])
    )
    simulator = simulator_of(make_graph(num_ops, output=1e5), cluster, total)
    plan = random_plan(generator, num_ops, num_ranks, total)
    forecast = simulator.forecast(plan)
    assert forecast.limit is not None
    assert forecast.limit.step_s <= forecast.step_s
    assert simulator.outcome(plan).busy_s.sum() == exact(total * num_ops * 3.0)
    assert {span.rank for span in simulator.timeline(plan).spans} == set(plan.used_ranks)
