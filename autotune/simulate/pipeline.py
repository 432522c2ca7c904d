"""A pipelined step: stages on different ranks, micro-batches one after another, in a classic schedule.

GPipe runs all forward passes, then all backward passes: bubble (p-1)/(m+p-1), every micro-batch's activations held at
once. 1F1B starts a backward pass as soon as it can: the same bubble, stage s holds at most p-s micro-batches. Replicas
of a stage share the batch and add their gradients up at the end; ranks of a tensor-parallel group share every op and add
up its output (every second Linear layer, as Megatron pairs them).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from autotune.simulate.collectives import Load, hop_latency_s, hop_loads, ring_loads
from autotune.simulate.costs import NO_OVERHEAD, Costs
from autotune.simulate.engine import Floats, Tasks
from autotune.simulate.labelled import LabelledTasks
from autotune.simulate.layout import BACKWARD, DATA, FORWARD, UPDATE, Labels
from autotune.simulate.tasks import MemoryChange
from autotune.simulate.units import as_links
from workloads.errors import SpecError
from workloads.graph import OpGraph
from workloads.plan import PipelinePlan, Plan


def classic_order(schedule: str, stage: int, num_stages: int, micro_batches: int) -> Iterator[tuple[int, int]]:
    """(FORWARD or BACKWARD, micro-batch) in the order in which a stage takes them."""
    ahead = micro_batches if schedule == "gpipe" else min(num_stages - stage, micro_batches)
    yield from ((FORWARD, number) for number in range(ahead))
    for number in range(micro_batches):
        yield BACKWARD, number
        if ahead + number < micro_batches:
            yield FORWARD, ahead + number


def stage_ops(graph: OpGraph, pipeline: PipelinePlan) -> list[range]:
    """The ops of each stage."""
    return [range(a, b) for a, b in pairwise([*pipeline.first_ops, len(graph.ops)])]


def param_shares(graph: OpGraph, plan: Plan) -> Floats:
    """Which part of the parameters each rank holds."""
    shares = np.ones(len(plan.batch.samples))
    if plan.pipeline is not None:
        total = graph.param_bytes or 1
        for ops, ranks in zip(stage_ops(graph, plan.pipeline), plan.pipeline.stage_ranks, strict=True):
            held = sum(graph.ops[op].param_bytes for op in ops) / total / plan.pipeline.tensor_parallel
            shares[list(ranks)] = held
    return shares


def crossing_bytes(graph: OpGraph, first_op: int) -> float:
    """Bytes per sample between the ops before `first_op` and those from it on, per op that made them the most that one
    other op reads (whether two read the same tensor, edges do not say). Without edges, what the op before returns.
    """
    if not graph.edges:
        return graph.ops[first_op - 1].output_bytes_per_sample
    order = {op.name: index for index, op in enumerate(graph.ops)}
    crossing: dict[str, float] = {}
    for edge in graph.edges:
        if (order[edge.source] < first_op) != (order[edge.target] < first_op):
            crossing[edge.source] = max(crossing.get(edge.source, 0.0), edge.bytes_per_sample)
    return sum(crossing.values())


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
        self._cluster = costs.cluster
        self._ops = stage_ops(graph, pipeline)
        degree, self._parts = pipeline.tensor_parallel, pipeline.micro_batches
        self._groups = [[ranks[i : i + degree] for i in range(0, len(ranks), degree)] for ranks in pipeline.stage_ranks]
        self._micro = np.array(plan.batch.samples, np.float64) / self._parts
        self._samples = np.array(plan.batch.samples, np.float64)
        self._passes = dict(zip((FORWARD, BACKWARD), costs.passes(self._micro), strict=True))
        self._transport = costs.transports.get(plan.comm.transport, NO_OVERHEAD)
        self._made = LabelledTasks()
        self._arrived: dict[tuple[int, int, int], list[int]] = {}
        """(pass, stage, micro-batch) -> what must have come before it may start."""

    def expand(self) -> tuple[Tasks, Labels]:
        num_stages = len(self._ops)
        orders = [list(classic_order(self._pipeline.schedule, s, num_stages, self._parts)) for s in range(num_stages)]
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
        for stage in range(num_stages):
            self._finish(stage)
        return self._made.arrays()

    def _may(self, block: tuple[int, int], stage: int) -> bool:
        """What a block waits for has been written down already."""
        what, number = block
        if what == FORWARD:
            return stage == 0 or (FORWARD, stage, number) in self._arrived
        return stage == len(self._ops) - 1 or (BACKWARD, stage, number) in self._arrived

    def _block(self, what: int, number: int, stage: int) -> None:
        after = self._arrived.get((what, stage, number), [])
        done = [self._on_rank(what, stage, rank, len(group), after) for group in self._groups[stage] for rank in group]
        to = stage + 1 if what == FORWARD else stage - 1
        if 0 <= to < len(self._ops):
            self._arrived[what, to, number] = self._pass_on(stage, to, done, number)

    def _on_rank(self, what: int, stage: int, rank: int, degree: int, after: Sequence[int]) -> int:
        ops = self._ops[stage]
        seconds = float(self._passes[what][rank, ops.start : ops.stop].sum()) / degree
        seconds += self._shared_outputs_s(stage, rank) if degree > 1 else 0.0
        saved = sum(self._graph.ops[op].saved_bytes_per_sample for op in ops) * float(self._micro[rank]) / degree
        memory = (
            MemoryChange(device=rank, at_start=saved) if what == FORWARD else MemoryChange(device=rank, at_end=-saved)
        )
        return self._made.work(what, rank, ops.start, seconds, after, memory)

    def _pass_on(self, stage: int, to: int, done: Sequence[int], number: int) -> list[int]:
        """Activations (or their gradients) to the neighbouring stage: from each sender its share to each receiver."""
        bytes_per_sample = crossing_bytes(self._graph, self._pipeline.first_ops[max(stage, to)])
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
                self._links(hop_loads(self._cluster.host_of_rank, a, b, bytes_per_sample * samples)),
                done,
                rank=a,
                num_bytes=bytes_per_sample * samples,
                latency_s=hop_latency_s(self._cluster, a, b),
            )
            for a, b, samples in hops
        ]

    def _finish(self, stage: int) -> None:
        """Replicas add their gradients up, then everybody updates."""
        leaders = [group[0] for group in self._groups[stage]]
        ranks = [rank for group in self._groups[stage] for rank in group]
        num_bytes = sum(self._graph.ops[op].param_bytes for op in self._ops[stage]) / len(self._groups[stage][0])
        after: list[int] = []
        if len(leaders) > 1 and num_bytes > 0:
            after = [
                self._made.send(
                    self._parts + stage,
                    self._links(self._ring(leaders, num_bytes)),
                    [self._made.last[rank] for rank in ranks],
                    num_bytes=num_bytes,
                    fixed_s=float(self._transport.overhead(np.array([num_bytes]))[0]),
                )
            ]
        share = sum(self._graph.ops[op].param_bytes for op in self._ops[stage]) / (self._graph.param_bytes or 1)
        for rank in ranks:
            update_s = float(self._costs.update.at(self._samples)[rank]) * share / self._pipeline.tensor_parallel
            self._made.work(UPDATE, rank, 0, update_s, after)

    def _shared_outputs_s(self, stage: int, rank: int) -> float:
        """Every second Linear layer's output is added up over the group; closed form, since the group waits for it."""
        group = next(group for group in self._groups[stage] if rank in group)
        linear = [op for op in self._ops[stage] if self._graph.ops[op].factor_shapes]
        per_sample = sum(self._graph.ops[op].output_bytes_per_sample for op in linear[1::2])
        loads = self._ring(group, per_sample * float(self._micro[rank]))
        times = [0.0]
        for load in loads:
            link = self._cluster.hosts[load.host].link
            if link is not None:
                times += [load.up_bytes / link.up_bytes_per_s, load.down_bytes / link.down_bytes_per_s]
        return max(times)

    def _ring(self, ranks: Sequence[int], num_bytes: float) -> list[Load]:
        return ring_loads([self._cluster.host_of_rank[rank] for rank in ranks], num_bytes)

    def _links(self, loads: Sequence[Load]) -> list[tuple[int, float]]:
        return as_links(self._cluster, loads)
