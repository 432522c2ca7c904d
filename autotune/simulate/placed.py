"""A step of a plan that places groups of ops, as our executor runs it (`autotune.runtime.placed`).

Each rank runs its passes in the plan's order (`autotune.workloads.tensor_graph.passes`), one lane after another, and every lane
pays the fixed costs of its ops. Tensors go from rank to rank while the sender computes; those between two ranks follow each
other, as on one connection. A tensor is sent once to each segment that reads it, and its gradient comes back. At the end of the
step, ranks that hold the same parameters sum their gradients: each rank sums an equal shard and sends it to the others. Every
rank loads the whole batch, of which it takes its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.simulate import layout
from autotune.simulate.collectives import ranks_latency_s
from autotune.simulate.cost_tables import NO_OVERHEAD, Costs
from autotune.simulate.edge_loads import hop_bytes, shard_bytes
from autotune.simulate.labelled import LabelledTasks
from autotune.simulate.layout import DATA, UPDATE, Labels
from autotune.simulate.task_graph import Floats, Tasks
from autotune.simulate.tasks import MemoryChange
from autotune.workloads.blocks import FORWARD
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import Plan
from autotune.workloads.plan.op_groups import PlacementPlan
from autotune.workloads.tensor_graph.operations import Operations
from autotune.workloads.tensor_graph.passes import PlacedPass, PlacedPasses, placed_passes
from autotune.workloads.tensor_graph.segments import segment_of_ops

Holders = dict[tuple[int, ...], float]
"""By ranks: bytes of the parameters that these hold, and no others."""


def holders(graph: OpGraph, placement: PlacementPlan) -> Holders:
    """Ranks of a parameter: those of its op's group, and of the ops that it is tied to."""
    group_of = placement.group_of_op()
    group_by_name = {op.name: group_of[index] for index, op in enumerate(graph.ops)}
    found: Holders = {}
    stated = dict.fromkeys(group_by_name, 0.0)
    for parameter in graph.parameters:
        groups = {group_by_name[name] for name in (parameter.op, *parameter.also) if name in group_by_name}
        stated[parameter.op] = stated.get(parameter.op, 0.0) + parameter.num_bytes
        _hold(found, placement, groups, parameter.num_bytes)
    for op in graph.ops:  # a graph without parameters by name
        _hold(found, placement, {group_by_name[op.name]}, op.param_bytes - stated[op.name])
    return found


def _hold(found: Holders, placement: PlacementPlan, groups: set[int], num_bytes: float) -> None:
    ranks = tuple(sorted({rank for group in groups for rank in placement.groups[group].ranks}))
    if num_bytes > 0 and ranks:
        found[ranks] = found.get(ranks, 0.0) + num_bytes


def placed_shares(graph: OpGraph, placement: PlacementPlan, num_ranks: int) -> tuple[Floats, Floats]:
    """Of each rank: the share of the parameters that it holds, and the bytes that it sums with others."""
    shares, summed = np.zeros(num_ranks), np.zeros(num_ranks)
    for ranks, num_bytes in holders(graph, placement).items():
        shares[list(ranks)] += num_bytes / (graph.param_bytes or 1)
        if len(ranks) > 1:
            summed[list(ranks)] += num_bytes
    return shares, summed


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedStep:
    """The tasks of a step, and the passes that they are of."""

    tasks: Tasks
    labels: Labels
    passes: PlacedPasses
    num_connections: int

    def span_names(self) -> dict[int, str]:
        """Per task that is a pass: its block."""
        is_pass = (self.labels.kind == layout.FORWARD) | (self.labels.kind == layout.BACKWARD)
        names = self.passes.names()
        return {
            task: f"{names[one.kind, one.segment, one.lane]} micro-batch {one.microbatch}"
            for task, one in zip(np.flatnonzero(is_pass).tolist(), self.passes.order, strict=True)
        }


def expand_placement(graph: OpGraph, operations: Operations, plan: Plan, costs: Costs) -> PlacedStep:
    """Sums over ranks are in queue 0, messages in one queue for each connection."""
    assert plan.placement is not None
    passes = placed_passes(operations, operations.groups_by_name(graph, plan.placement), plan.placement)
    return _Expansion(graph, operations, plan, plan.placement, passes, costs).expand()


class _Expansion:
    def __init__(  # noqa: PLR0913, PLR0917 - what a step is made of
        self,
        graph: OpGraph,
        operations: Operations,
        plan: Plan,
        placement: PlacementPlan,
        passes: PlacedPasses,
        costs: Costs,
    ) -> None:
        self._graph, self._plan, self._placement, self._passes, self._costs = graph, plan, placement, passes, costs
        self._topology = costs.cluster.topology
        self._transport = costs.transports.get(plan.comm.transport, NO_OVERHEAD)
        owner = segment_of_ops(graph, operations, passes.segments)
        self._own = np.zeros((len(graph.ops), len(passes.segments)))
        self._own[np.arange(len(graph.ops)), owner] = 1.0
        self._first_op = [owner.index(number) if number in owner else 0 for number in range(len(passes.segments))]
        self._saved = np.array([op.saved_bytes_per_sample for op in graph.ops]) @ self._own
        counts = {lane.num_samples for lane in passes.lanes}
        self._seconds = {count: self._pass_s(count) for count in counts}
        self._queues: dict[tuple[int, int], int] = {}
        self._made = LabelledTasks()
        self._arrived: dict[tuple[str, int, int, int], list[int]] = {}
        """Of each pass (kind, segment, lane, micro-batch): the messages that it needs."""

    def _pass_s(self, num_samples: int) -> tuple[Floats, Floats]:
        """Seconds of each segment on each rank, forward and backward."""
        samples = np.full(len(self._costs.cluster.devices), float(num_samples))
        forward_s, backward_s = self._costs.passes(samples)
        return forward_s @ self._own, backward_s @ self._own

    def expand(self) -> PlacedStep:
        ranks = self._plan.used_ranks
        data_s = self._costs.data.at(np.full(len(self._plan.batch.samples), float(self._placement.global_batch)))
        for rank in ranks:
            self._made.work(DATA, rank, 0, float(data_s[rank]))
        for one in self._passes.order:
            self._run(one)
        self._finish(ranks)
        tasks, labels = self._made.arrays()
        return PlacedStep(tasks=tasks, labels=labels, passes=self._passes, num_connections=len(self._queues))

    def _run(self, one: PlacedPass) -> None:
        passes, lane = self._passes, self._passes.lanes[one.lane]
        rank, is_forward = passes.rank(one.segment, one.lane), one.kind == FORWARD
        seconds = self._seconds[lane.num_samples][0 if is_forward else 1][rank, one.segment]
        held = self._saved[one.segment] * lane.num_samples
        held += sum(
            near.bytes_per_sample * lane.num_samples
            for near in passes.reads[one.segment]
            if passes.rank(near.segment, one.lane) != rank
        )
        done = self._made.work(
            layout.FORWARD if is_forward else layout.BACKWARD,
            rank,
            self._first_op[one.segment],
            float(seconds),
            self._arrived.pop((one.kind, one.segment, one.lane, one.microbatch), ()),
            MemoryChange(device=rank, at_start=held) if is_forward else MemoryChange(device=rank, at_end=-held),
        )
        for near in passes.readers[one.segment] if is_forward else passes.reads[one.segment]:
            other = passes.rank(near.segment, one.lane)
            num_bytes = near.bytes_per_sample if is_forward else near.gradient_bytes_per_sample
            if other != rank and num_bytes is not None:
                sent = self._message(one.microbatch, rank, other, num_bytes * lane.num_samples, done)
                self._arrived.setdefault((one.kind, near.segment, one.lane, one.microbatch), []).append(sent)

    def _message(self, number: int, source: int, target: int, num_bytes: float, after: int) -> int:
        """The task after which a message has arrived. It leaves its connection to the next one before its latency has passed."""
        queue, latency_s = 0, self._topology.latency_s(source, target)
        if not self._costs.serialized_links:  # emulated links take messages in the order in which they are sent
            queue = self._queues.setdefault((source, target), len(self._queues) + 1)
        sent = self._made.send(
            number,
            list(hop_bytes(self._topology, source, target, num_bytes).items()),
            [after],
            rank=source,
            num_bytes=num_bytes,
            latency_s=0.0 if queue else latency_s,
            queue=queue,
        )
        return self._made.barrier([sent], latency_s) if queue and latency_s else sent

    def _finish(self, ranks: Sequence[int]) -> None:
        """Ranks that hold the same parameters sum their gradients, then every rank updates."""
        after: dict[int, list[int]] = {}
        last = dict(self._made.last)
        held = holders(self._graph, self._placement)
        for number, (members, num_bytes) in enumerate(sorted(held.items())):
            if len(members) == 1:
                continue
            even = [1 / len(members)] * len(members)
            sent = self._made.send(
                self._placement.micro_batches + number,
                list(shard_bytes(self._topology, members, even, num_bytes).items()),
                [last[rank] for rank in members],
                num_bytes=num_bytes,
                fixed_s=float(self._transport.overhead(np.array([num_bytes]))[0]),
                latency_s=ranks_latency_s("shards", self._topology, members),
            )
            for rank in members:
                after.setdefault(rank, []).append(sent)
        shares, _ = placed_shares(self._graph, self._placement, len(self._plan.batch.samples))
        updates_s = self._costs.update.at(np.array(self._plan.batch.samples, np.float64)) * shares
        for rank in ranks:
            self._made.work(UPDATE, rank, 0, float(updates_s[rank]), after.get(rank, []))
