"""Op graphs as operations, cut into segments, in an order that every rank can follow."""

from __future__ import annotations

import random

import pytest

from autotune.workloads.blocks import BACKWARD, FORWARD
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import Edge, Op, OpGraph
from autotune.workloads.plan.op_groups import OpGroup, PlacementPlan
from autotune.workloads.tensor_graph.operations import operations_of
from autotune.workloads.tensor_graph.passes import placed_passes


def graph_of(num_ops, edges=()):
    ops = tuple(
        Op(
            name=f"op{index}",
            kind="Linear",
            num_calls=1,
            flops_per_sample=1.0,
            fixed_bytes=0.0,
            bytes_per_sample=0.0,
            param_bytes=4,
            backward_factor=2.0,
            output_bytes_per_sample=10.0 * (index + 1),
        )
        for index in range(num_ops)
    )
    found = tuple(Edge(source=f"op{a}", target=f"op{b}", bytes_per_sample=8.0) for a, b in edges)
    return OpGraph(ops=ops, saved_bytes_per_sample=0.0, edges=found)


def passes_of(graph, *groups, micro_batches=1):
    placement = PlacementPlan(
        groups=tuple(OpGroup(ops=ops, ranks=ranks, samples=samples) for ops, ranks, samples in groups),
        micro_batches=micro_batches,
    )
    operations = operations_of(graph)
    return placed_passes(operations, operations.groups_by_name(graph, placement), placement)


def test_a_graph_without_edges_is_a_chain():
    operations = operations_of(graph_of(3)).operations
    assert [one.reads for one in operations] == [(), ("op0",), ("op1",)]
    assert [one.bytes_per_sample for one in operations] == [10.0, 20.0, 0.0]
    assert [one.is_output for one in operations] == [False, False, True]


def test_ops_that_read_each_other_stay_together():
    graph = graph_of(5, [(0, 1), (1, 3), (3, 1), (3, 4)])
    assert operations_of(graph).bound_ops == (frozenset({"op1", "op2", "op3"}),)
    with pytest.raises(SpecError, match="put them into one group"):
        passes_of(graph, ((0, 1), (0,), (2,)), ((2, 3, 4), (1,), (2,)))


def test_a_group_that_is_left_and_entered_again_is_two_segments():
    found = passes_of(graph_of(3), ((0, 2), (0,), (2,)), ((1,), (1,), (2,)))
    assert [(one.group, one.nodes) for one in found.segments] == [(0, ("op0",)), (1, ("op1",)), (0, ("op2",))]
    assert [[near.segment for near in several] for several in found.reads] == [[], [0], [1]]
    assert [[near.segment for near in several] for several in found.readers] == [[1], [2], []]


def test_lanes_cut_the_batch_where_a_group_changes_rank():
    found = passes_of(graph_of(2), ((0,), (0, 1), (3, 5)), ((1,), (1, 0), (2, 6)))
    assert [(lane.num_samples, lane.ranks) for lane in found.lanes] == [(2, (0, 1)), (1, (0, 0)), (5, (1, 0))]
    assert found.names()[FORWARD, 1, 2] == "f1.1/1"


@pytest.mark.parametrize("seed", range(20))
def test_the_order_has_every_pass_once_after_what_it_needs(seed):
    generator = random.Random(seed)
    num_ops = generator.randint(2, 8)
    pairs = [(a, b) for b in range(1, num_ops) for a in generator.sample(range(b), min(b, 2))]
    groups: dict[int, list[int]] = {}
    for op in range(num_ops):
        groups.setdefault(generator.randrange(3), []).append(op)
    micro_batches = generator.choice([1, 2, 4])
    found = passes_of(
        graph_of(num_ops, pairs),
        *(
            (tuple(ops), *generator.choice([((0, 1), (4, 4)), ((2,), (8,)), ((0, 2), (4, 4))]))
            for ops in groups.values()
        ),
        micro_batches=micro_batches,
    )
    done = set()
    for one in found.order:
        at = (one.lane, one.microbatch)
        if one.kind == FORWARD:
            assert all((FORWARD, near.segment, *at) in done for near in found.reads[one.segment])
        else:
            assert (FORWARD, one.segment, *at) in done
            assert all((BACKWARD, near.segment, *at) in done for near in found.readers[one.segment])
        done.add((one.kind, one.segment, *at))
    assert len(done) == len(found.order) == 2 * len(found.segments) * len(found.lanes) * micro_batches
