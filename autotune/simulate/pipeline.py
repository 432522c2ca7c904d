"""A pipelined step: stages on different ranks, micro-batches one after another, in the order of the plan's schedule.

With GPipe and 1F1B the bubble is (p-1)/(m+p-1) of the step for equal stages; zero-bubble and searched orders are followed pass
by pass. A split backward takes half of its time for weights, in ops that have weights. Replicas of a stage share
the batch and sum their gradients at the end of the step. Ranks of a tensor-parallel group share every op and sum
its output (every second Linear layer, as Megatron pairs them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from autotune.simulate import layout
from autotune.simulate.cost_tables import NO_OVERHEAD, Costs
from autotune.simulate.edge_loads import hop_bytes, ring_bytes
from autotune.simulate.labelled import LabelledTasks
from autotune.simulate.layout import DATA, UPDATE, Labels
from autotune.simulate.roofline import weight_share
from autotune.simulate.task_graph import Floats, Tasks
from autotune.simulate.tasks import NO_CHANGE, MemoryChange
from autotune.workloads.blocks import BACKWARD, FORWARD, INPUT, WEIGHT
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import PipelinePlan, Plan
from autotune.workloads.stage_order import Pass


def stage_ops(graph: OpGraph, pipeline: PipelinePlan) -> list[range]:
    """The ops of each stage."""
    return [range(a, b) for a, b in pairwise([*pipeline.first_ops, len(graph.ops)])]


def param_shares(graph: OpGraph, plan: Plan) -> Floats:
    """The share of the parameters that each rank holds; parameters shared by stages count on each of them."""
    if plan.pipeline is None:
        return np.ones(len(plan.batch.samples))
    shares, total = np.zeros(len(plan.batch.samples)), graph.param_bytes or 1
    for ops, ranks in zip(stage_ops(graph, plan.pipeline), plan.pipeline.stage_ranks, strict=True):
        held = sum(graph.ops[op].param_bytes for op in ops) / plan.pipeline.tensor_parallel
        shares[list(ranks)] = held / total
    for tie in ties(graph, plan.pipeline):
        for stage in tie.stages[1:]:
            shares[list(plan.pipeline.stage_ranks[stage])] += tie.num_bytes / total
    return shares


def shared_bytes(graph: OpGraph, plan: Plan) -> Floats:
    """Bytes that each rank sums with others at the end of a step: replicas all gradients, stages those of shared parameters."""
    found = np.zeros(len(plan.batch.samples))
    if plan.pipeline is None:
        return found
    for ranks, num_bytes in _summed(graph, plan.pipeline):
        found[list(ranks)] += num_bytes
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Tie:
    """Parameters that several stages hold, the owner first."""

    stages: tuple[int, ...]
    num_bytes: float


def ties(graph: OpGraph, pipeline: PipelinePlan) -> list[Tie]:
    """Tied parameters whose layers are on different stages."""
    stage_of = {graph.ops[op].name: stage for stage, ops in enumerate(stage_ops(graph, pipeline)) for op in ops}
    sums: dict[tuple[int, ...], float] = {}
    for parameter in graph.parameters:
        stages = tuple(dict.fromkeys(stage_of[name] for name in (parameter.op, *parameter.also) if name in stage_of))
        if len(stages) > 1:
            sums[stages] = sums.get(stages, 0.0) + parameter.num_bytes
    return [Tie(stages=stages, num_bytes=num_bytes) for stages, num_bytes in sums.items()]


def _summed(graph: OpGraph, pipeline: PipelinePlan) -> list[tuple[tuple[int, ...], float]]:
    """Ranks (of a tensor-parallel group its first) that sum gradients, and the bytes of them."""
    degree, tied = pipeline.tensor_parallel, ties(graph, pipeline)
    found = []
    for stage, (ops, ranks) in enumerate(zip(stage_ops(graph, pipeline), pipeline.stage_ranks, strict=True)):
        own = sum(graph.ops[op].param_bytes for op in ops) / degree
        own -= sum(tie.num_bytes for tie in tied if tie.stages[0] == stage)
        found.append((ranks[::degree], own))
    found += [
        (tuple(rank for stage in tie.stages for rank in pipeline.stage_ranks[stage][::degree]), tie.num_bytes)
        for tie in tied
    ]
    return [(ranks, num_bytes) for ranks, num_bytes in found if len(ranks) > 1 and num_bytes > 0]


def boundary_bytes(graph: OpGraph, first_op: int) -> float:
    """Bytes per sample that pass the boundary before `first_op`. Each source op counts the most that one op behind the
    boundary reads: edges do not show whether two ops read the same tensor. Without edges: the output of the op before.
    """
    if not graph.edges:
        return graph.ops[first_op - 1].output_bytes_per_sample
    order = {op.name: index for index, op in enumerate(graph.ops)}
    passing: dict[str, float] = {}
    for edge in graph.edges:
        if (order[edge.source] < first_op) != (order[edge.target] < first_op):
            passing[edge.source] = max(passing.get(edge.source, 0.0), edge.bytes_per_sample)
    return sum(passing.values())


def pass_costs(graph: OpGraph, costs: Costs, samples: Floats) -> dict[str, Floats]:
    """Seconds of every op on every rank, by the kind of pass."""
    forward_s, backward_s = costs.passes(samples)
    weight_s: Floats = backward_s * np.array([weight_share(op) for op in graph.ops])
    return {FORWARD: forward_s, BACKWARD: backward_s, INPUT: backward_s - weight_s, WEIGHT: weight_s}


def expand_pipeline(graph: OpGraph, plan: Plan, costs: Costs) -> tuple[Tasks, Labels]:
    """One step of a pipelined plan."""
    assert plan.pipeline is not None
    if plan.pipeline.first_ops[-1] >= len(graph.ops):
        raise SpecError(
            f"the plan's last stage begins at op {plan.pipeline.first_ops[-1]} but the model has {len(graph.ops)} ops"
        )
    return _Expansion(graph, plan, plan.pipeline, costs).expand()


class _Expansion:
    def __init__(self, graph: OpGraph, plan: Plan, pipeline: PipelinePlan, costs: Costs) -> None:
        self._graph, self._pipeline, self._costs = graph, pipeline, costs
        self._topology = costs.cluster.topology
        self._ops = stage_ops(graph, pipeline)
        degree, self._parts = pipeline.tensor_parallel, pipeline.micro_batches
        self._groups = [[ranks[i : i + degree] for i in range(0, len(ranks), degree)] for ranks in pipeline.stage_ranks]
        self._micro = np.array(plan.batch.samples, np.float64) / self._parts
        self._samples = np.array(plan.batch.samples, np.float64)
        self._passes = pass_costs(graph, costs, self._micro)
        self._transport = costs.transports.get(plan.comm.transport, NO_OVERHEAD)
        self._made = LabelledTasks()
        self._arrived: dict[tuple[bool, int, int], list[int]] = {}
        """(is forward, stage, micro-batch) -> the tasks that it depends on."""

    def expand(self) -> tuple[Tasks, Labels]:
        num_stages = len(self._ops)
        orders = self._pipeline.passes()
        for stage in range(num_stages):
            for group in self._groups[stage]:
                for rank in group:
                    self._made.work(
                        DATA, rank, 0, float(self._costs.data.at(self._samples)[rank]) if stage == 0 else 0.0
                    )
        places = [0] * num_stages
        while any(place < len(orders[s]) for s, place in enumerate(places)):
            moved = False
            for stage in range(num_stages):
                while places[stage] < len(orders[stage]) and self._may(orders[stage][places[stage]], stage):
                    self._block(*orders[stage][places[stage]], stage)
                    places[stage] += 1
                    moved = True
            assert moved, "a schedule that waits for itself"
        self._finish()
        return self._made.arrays()

    def _may(self, one: Pass, stage: int) -> bool:
        """Whether the dependencies of a pass have been expanded."""
        kind, number = one
        if kind == FORWARD:
            return stage == 0 or (True, stage, number) in self._arrived
        return kind == WEIGHT or stage == len(self._ops) - 1 or (False, stage, number) in self._arrived

    def _block(self, kind: str, number: int, stage: int) -> None:
        is_forward = kind == FORWARD
        after = [] if kind == WEIGHT else self._arrived.get((is_forward, stage, number), [])
        done = [self._on_rank(kind, stage, rank, len(group), after) for group in self._groups[stage] for rank in group]
        to = stage + 1 if is_forward else stage - 1
        if kind != WEIGHT and 0 <= to < len(self._ops):
            self._arrived[is_forward, to, number] = self._pass_on(stage, to, done, number)

    def _on_rank(self, kind: str, stage: int, rank: int, degree: int, after: Sequence[int]) -> int:
        ops = self._ops[stage]
        seconds = float(self._passes[kind][rank, ops.start : ops.stop].sum()) / degree
        seconds += self._shared_outputs_s(stage, rank) if degree > 1 and kind != WEIGHT else 0.0
        memory = NO_CHANGE
        saved = sum(self._graph.ops[op].saved_bytes_per_sample for op in ops) * float(self._micro[rank]) / degree
        if kind == FORWARD:
            memory = MemoryChange(device=rank, at_start=saved)
        elif kind != INPUT:
            memory = MemoryChange(device=rank, at_end=-saved)
        what = layout.FORWARD if kind == FORWARD else layout.BACKWARD
        return self._made.work(what, rank, ops.start, seconds, after, memory)

    def _pass_on(self, stage: int, to: int, done: Sequence[int], number: int) -> list[int]:
        """Activations (or their gradients) to the neighbouring stage: from each sender its share to each receiver."""
        bytes_per_sample = boundary_bytes(self._graph, self._pipeline.first_ops[max(stage, to)])
        senders = [group[0] for group in self._groups[stage]]
        receivers = [group[0] for group in self._groups[to]]
        total = float(sum(self._micro[rank] for rank in senders))
        one_to_one = len(senders) == len(receivers) and all(
            self._micro[a] == self._micro[b] for a, b in zip(senders, receivers, strict=True)
        )
        hops = (
            [(a, b, float(self._micro[a])) for a, b in zip(senders, receivers, strict=True)]
            if one_to_one
            else [(a, b, float(self._micro[a] * self._micro[b]) / total) for a in senders for b in receivers]
        )
        return [
            self._made.send(
                number,
                list(hop_bytes(self._topology, a, b, bytes_per_sample * samples).items()),
                done,
                rank=a,
                num_bytes=bytes_per_sample * samples,
                latency_s=self._topology.latency_s(a, b),
            )
            for a, b, samples in hops
        ]

    def _finish(self) -> None:
        """Ranks that hold the same parameters sum their gradients, then every rank updates."""
        after: dict[int, list[int]] = {}
        last = dict(self._made.last)
        for number, (ranks, num_bytes) in enumerate(_summed(self._graph, self._pipeline)):
            members = [rank for leader in ranks for rank in self._group_of(leader)]
            sent = self._made.send(
                self._parts + number,
                list(ring_bytes(self._topology, ranks, num_bytes).items()),
                [last[rank] for rank in members],
                num_bytes=num_bytes,
                fixed_s=float(self._transport.overhead(np.array([num_bytes]))[0]),
            )
            for rank in members:
                after.setdefault(rank, []).append(sent)
        for stage, groups in enumerate(self._groups):
            share = sum(self._graph.ops[op].param_bytes for op in self._ops[stage]) / (self._graph.param_bytes or 1)
            for rank in (rank for group in groups for rank in group):
                update_s = float(self._costs.update.at(self._samples)[rank]) * share / self._pipeline.tensor_parallel
                self._made.work(UPDATE, rank, 0, update_s, after.get(rank, []))

    def _group_of(self, leader: int) -> Sequence[int]:
        return next(group for groups in self._groups for group in groups if group[0] == leader)

    def _shared_outputs_s(self, stage: int, rank: int) -> float:
        """Every second Linear layer's output is summed over the group; closed form, since the group waits for it."""
        group = next(group for group in self._groups[stage] if rank in group)
        linear = [op for op in self._ops[stage] if self._graph.ops[op].factor_shapes]
        per_sample = sum(self._graph.ops[op].output_bytes_per_sample for op in linear[1::2])
        return self._topology.busy_s(ring_bytes(self._topology, group, per_sample * float(self._micro[rank])))
