"""A pipelined step: stages on different ranks, micro-batches one after another, in the order of the plan's schedule.

With GPipe and 1F1B the bubble is (p-1)/(m+p-1) of the step for equal stages; zero-bubble and searched orders are followed pass
by pass. A split backward takes half of its time for weights, in ops that have weights. Replicas of a stage share each micro-batch,
or take whole ones round-robin, and sum their gradients at the end of the step. Ranks of a tensor-parallel group share every op and
sum its output (every second Linear layer, as Megatron pairs them); each of them sums its part of the gradients in a ring with
the ranks that hold the same part. Groups of unlike sizes cut the parameters at the bounds of all of them, so that a rank of
the smaller group holds several neighbouring pieces.

Messages share links, and nothing else: those from one rank to another follow each other, as on one connection. A rank computes
while it sends, as our executor does (`autotune.runtime.placed`); with `blocking` it waits until each message has left, which
other systems may do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from autotune.simulate import layout
from autotune.simulate.collectives import ranks_latency_s
from autotune.simulate.cost_tables import NO_OVERHEAD, Costs
from autotune.simulate.edge_loads import hop_bytes, pieces, ring_bytes
from autotune.simulate.labelled import LabelledTasks
from autotune.simulate.layout import DATA, UPDATE, Labels
from autotune.simulate.roofline import weight_share
from autotune.simulate.spans import Simulated
from autotune.simulate.task_graph import Floats, Tasks
from autotune.simulate.tasks import NO_CHANGE, MemoryChange
from autotune.workloads.blocks import BACKWARD, FORWARD, INPUT, WEIGHT, Block, BlockGraph, Slot, Timetable
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import OpGraph
from autotune.workloads.pass_names import pass_name, span_name
from autotune.workloads.plan import SPLIT, PipelinePlan, Plan, Replica
from autotune.workloads.stage_order import Pass


def stage_ops(graph: OpGraph, pipeline: PipelinePlan) -> list[range]:
    """The ops of each stage."""
    return [range(a, b) for a, b in pairwise([*pipeline.first_ops, len(graph.ops)])]


def param_shares(graph: OpGraph, plan: Plan) -> Floats:
    """The share of the parameters that each rank holds; parameters shared by stages count on each of them."""
    if plan.pipeline is None:
        return np.ones(len(plan.batch.samples))
    shares, total = np.zeros(len(plan.batch.samples)), graph.param_bytes or 1
    held = [float(sum(graph.ops[op].param_bytes for op in ops)) for ops in stage_ops(graph, plan.pipeline)]
    for tie in ties(graph, plan.pipeline):
        for stage in tie.stages[1:]:
            held[stage] += tie.num_bytes
    for num_bytes, groups in zip(held, plan.pipeline.groups(), strict=True):
        for ranks in groups:
            shares[list(ranks)] = num_bytes / len(ranks) / total
    return shares


def shared_bytes(graph: OpGraph, plan: Plan) -> Floats:
    """Bytes that each rank sums with others at the end of a step: replicas all gradients, stages those of shared parameters."""
    found = np.zeros(len(plan.batch.samples))
    if plan.pipeline is None:
        return found
    for ranks, num_bytes in summed(graph, plan.pipeline):
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


def summed(graph: OpGraph, pipeline: PipelinePlan) -> list[tuple[tuple[int, ...], float]]:
    """Ranks that sum gradients, and the bytes of them: for each piece that members of groups hold, a ring of its own."""
    groups, tied = pipeline.groups(), ties(graph, pipeline)
    parts: list[tuple[Sequence[tuple[int, ...]], float]] = []
    for stage, ops in enumerate(stage_ops(graph, pipeline)):
        own = float(sum(graph.ops[op].param_bytes for op in ops))
        own -= sum(tie.num_bytes for tie in tied if tie.stages[0] == stage)
        parts.append((groups[stage], own))
    parts += [([ranks for stage in tie.stages for ranks in groups[stage]], tie.num_bytes) for tie in tied]
    return [
        (tuple(ranks), share * num_bytes)
        for holders, num_bytes in parts
        if len(holders) > 1 and num_bytes > 0
        for ranks, share in pieces(holders)
    ]


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


def pass_costs(graph: OpGraph, costs: Costs, samples: Floats, degree: int = 1) -> dict[str, Floats]:
    """Seconds of every op on every rank, by the kind of pass; of one of `degree` devices that share each op."""
    forward_s, backward_s = costs.passes(samples, degree)
    weight_s: Floats = backward_s * np.array([weight_share(op) for op in graph.ops])
    return {FORWARD: forward_s, BACKWARD: backward_s, INPUT: backward_s - weight_s, WEIGHT: weight_s}


def connections(pipeline: PipelinePlan) -> int:
    """At least as many queues as `expand_pipeline` uses besides the first: one from each rank to each other that it sends to."""
    sizes = [len(groups) for groups in pipeline.groups()]
    if pipeline.sharing == SPLIT:
        return sum(2 * (a + b) for a, b in pairwise(sizes))
    return sum(2 * min(a * b, pipeline.micro_batches) for a, b in pairwise(sizes))


def overlaps(senders: Sequence[int], receivers: Sequence[int], samples: Floats) -> list[tuple[int, int, float]]:
    """Samples from each sender to each receiver: both take theirs of a micro-batch in order, as the executor's lanes do."""
    found, sent = [], dict.fromkeys(senders, 0.0)
    open_senders = list(senders)
    for receiver in receivers:
        missing = float(samples[receiver])
        while open_senders and missing > 0:
            sender = open_senders[0]
            part = min(missing, float(samples[sender]) - sent[sender])
            if part > 0:
                found.append((sender, receiver, part))
            sent[sender], missing = sent[sender] + part, missing - part
            if sent[sender] >= float(samples[sender]):
                open_senders.pop(0)
    return found


def _takers(workers: Sequence[Sequence[Replica]], micro_batches: int) -> list[int]:
    """The worker of a stage that takes each micro-batch."""
    found = [0] * micro_batches
    for number, worker in enumerate(workers):
        for kind, micro_batch in worker[0].passes:
            if kind == FORWARD:
                found[micro_batch] = number
    return found


def expand_pipeline(graph: OpGraph, plan: Plan, costs: Costs, *, blocking: bool = False) -> tuple[Tasks, Labels]:
    """One step of a pipelined plan. Sums over ranks are in queue 0, messages in one queue for each connection."""
    assert plan.pipeline is not None
    if plan.pipeline.first_ops[-1] >= len(graph.ops):
        raise SpecError(
            f"the plan's last stage begins at op {plan.pipeline.first_ops[-1]} but the model has {len(graph.ops)} ops"
        )
    return _Expansion(graph, plan, plan.pipeline, costs, blocking=blocking).expand()


class _Expansion:
    def __init__(self, graph: OpGraph, plan: Plan, pipeline: PipelinePlan, costs: Costs, *, blocking: bool) -> None:
        self._graph, self._pipeline, self._costs, self._blocking = graph, pipeline, costs, blocking
        self._topology = costs.cluster.topology
        self._ops = stage_ops(graph, pipeline)
        self._parts, self._replicas = pipeline.micro_batches, pipeline.replicas(plan.batch.samples)
        self._workers = [self._workers_of(stage) for stage in self._replicas]
        self._takers = [_takers(workers, self._parts) for workers in self._workers]
        self._degree = {rank: one.degree for stage in self._replicas for one in stage for rank in one.ranks}
        self._micro = np.array(pipeline.micro_samples(plan.batch.samples), np.float64)
        self._samples = np.array(plan.batch.samples, np.float64)
        self._passes = {
            degree: pass_costs(graph, costs, self._micro, degree) for degree in sorted(set(self._degree.values()))
        }
        self._saved = [sum(graph.ops[op].saved_bytes_per_sample for op in ops) for ops in self._ops]
        self._boundary = [boundary_bytes(graph, first) if first else 0.0 for first in pipeline.first_ops]
        self._data_s = costs.data.at(self._samples)
        self._sums_s = {
            one.ranks: self._shared_outputs_s(stage, one.ranks)
            for stage, several in enumerate(self._replicas)
            for one in several
        }
        self._hops: dict[tuple[int, int, int, int], list[tuple[int, int, float]]] = {}
        self._queues: dict[tuple[int, int], int] = {}
        self._transport = costs.transports.get(plan.comm.transport, NO_OVERHEAD)
        self._made = LabelledTasks()
        self._arrived: dict[tuple[bool, int, int], dict[int, list[int]]] = {}
        """(is forward, stage, micro-batch) -> per first rank of a group, the messages that it depends on."""

    def _workers_of(self, stage: Sequence[Replica]) -> list[tuple[Replica, ...]]:
        """Replicas that take the same micro-batches, and so follow one order together."""
        return [tuple(stage)] if self._pipeline.sharing == SPLIT else [(one,) for one in stage]

    def expand(self) -> tuple[Tasks, Labels]:
        for stage, several in enumerate(self._replicas):
            for rank in (rank for one in several for rank in one.ranks):
                self._made.work(DATA, rank, 0, float(self._data_s[rank]) if stage == 0 else 0.0)
        waiting = [(stage, number) for stage, workers in enumerate(self._workers) for number in range(len(workers))]
        places = dict.fromkeys(waiting, 0)
        while waiting:
            moved = False
            for key in waiting:
                moved |= self._go_on(key, places)
            assert moved, "a schedule that waits for itself"
            waiting = [key for key in waiting if places[key] < len(self._workers[key[0]][key[1]][0].passes)]
        self._finish()
        return self._made.arrays()

    def _go_on(self, key: tuple[int, int], places: dict[tuple[int, int], int]) -> bool:
        """Expand the next passes of a stage's worker, as far as their dependencies have been expanded."""
        stage, number = key
        passes, first = self._workers[stage][number][0].passes, places[key]
        while places[key] < len(passes) and self._may(passes[places[key]], stage):
            self._block(*passes[places[key]], stage, number)
            places[key] += 1
        return places[key] > first

    def _may(self, one: Pass, stage: int) -> bool:
        """Whether the dependencies of a pass have been expanded."""
        kind, number = one
        if kind == FORWARD:
            return stage == 0 or (True, stage, number) in self._arrived
        return kind == WEIGHT or stage == len(self._ops) - 1 or (False, stage, number) in self._arrived

    def _block(self, kind: str, number: int, stage: int, worker: int) -> None:
        is_forward = kind == FORWARD
        after = {} if kind == WEIGHT else self._arrived.get((is_forward, stage, number), {})
        done = {}
        for one in self._workers[stage][worker]:
            sums_s = self._sums_s[one.ranks] if kind != WEIGHT else 0.0
            arrived = after.get(one.ranks[0], [])
            done[one.ranks[0]] = [self._on_rank(kind, stage, rank, arrived, sums_s) for rank in one.ranks]
        to = stage + 1 if is_forward else stage - 1
        if kind != WEIGHT and 0 <= to < len(self._ops):
            self._arrived[is_forward, to, number] = self._pass_on((stage, worker), to, done, number)

    def _on_rank(self, kind: str, stage: int, rank: int, after: Sequence[int], sums_s: float) -> int:
        ops, degree = self._ops[stage], self._degree[rank]
        seconds = float(self._passes[degree][kind][rank, ops.start : ops.stop].sum()) + sums_s
        memory = NO_CHANGE
        saved = self._saved[stage] * float(self._micro[rank]) / degree
        if kind == FORWARD:
            memory = MemoryChange(device=rank, at_start=saved)
        elif kind != INPUT:
            memory = MemoryChange(device=rank, at_end=-saved)
        what = layout.FORWARD if kind == FORWARD else layout.BACKWARD
        return self._made.work(what, rank, ops.start, seconds, after, memory)

    def _pass_on(
        self, sender: tuple[int, int], to: int, done: Mapping[int, Sequence[int]], number: int
    ) -> dict[int, list[int]]:
        """Activations (or their gradients) to the neighbouring stage: from each sender the samples that each receiver takes.

        Replicas do not wait for each other: a message leaves when its sender's group is done.
        """
        stage, worker = sender
        bytes_per_sample = self._boundary[max(stage, to)]
        key = (stage, worker, to, self._takers[to][number])
        if key not in self._hops:
            senders = [one.ranks[0] for one in self._workers[stage][worker]]
            receivers = [one.ranks[0] for one in self._workers[to][key[-1]]]
            self._hops[key] = overlaps(senders, receivers, self._micro)
        arrived: dict[int, list[int]] = {}
        for a, b, samples in self._hops[key]:
            sent = self._message(number, a, b, bytes_per_sample * samples, done[a])
            arrived.setdefault(b, []).append(sent)
        return arrived

    def _message(self, number: int, source: int, target: int, num_bytes: float, after: Sequence[int]) -> int:
        """The task after which a message has arrived. It leaves its connection to the next one before its latency has passed."""
        queue, latency_s = 0, self._topology.latency_s(source, target)
        if not self._costs.serialized_links:  # emulated links take messages in the order in which they are sent
            queue = self._queues.setdefault((source, target), len(self._queues) + 1)
        sent = self._made.send(
            number,
            list(hop_bytes(self._topology, source, target, num_bytes).items()),
            after,
            rank=source,
            num_bytes=num_bytes,
            latency_s=0.0 if queue else latency_s,
            queue=queue,
        )
        if self._blocking:
            self._made.last[source] = self._made.barrier([self._made.last[source], sent])
        return self._made.barrier([sent], latency_s) if queue and latency_s else sent

    def _finish(self) -> None:
        """Ranks that hold the same parameters sum their gradients, then every rank updates."""
        after: dict[int, list[int]] = {}
        last = dict(self._made.last)
        for number, (ranks, num_bytes) in enumerate(summed(self._graph, self._pipeline)):
            sent = self._made.send(
                self._parts + number,
                list(ring_bytes(self._topology, ranks, num_bytes).items()),
                [last[rank] for rank in ranks],
                num_bytes=num_bytes,
                fixed_s=float(self._transport.overhead(np.array([num_bytes]))[0]),
                latency_s=ranks_latency_s("ring", self._topology, ranks),
            )
            for rank in ranks:
                after.setdefault(rank, []).append(sent)
        updates_s = self._costs.update.at(self._samples)
        for stage, several in enumerate(self._replicas):
            share = sum(self._graph.ops[op].param_bytes for op in self._ops[stage]) / (self._graph.param_bytes or 1)
            for rank in (rank for one in several for rank in one.ranks):
                update_s = float(updates_s[rank]) * share / self._degree[rank]
                self._made.work(UPDATE, rank, 0, update_s, after.get(rank, []))

    def _shared_outputs_s(self, stage: int, group: Sequence[int]) -> float:
        """Every second Linear layer's output is summed over the group; closed form, since the group waits for it."""
        if len(group) == 1 or self._costs.includes_sums(len(group)):
            return 0.0
        linear = [op for op in self._ops[stage] if self._graph.ops[op].factor_shapes]
        per_sample = sum(self._graph.ops[op].output_bytes_per_sample for op in linear[1::2])
        num_bytes = per_sample * float(self._micro[group[0]])
        latency_s = len(linear[1::2]) * ranks_latency_s("ring", self._topology, group)
        return self._topology.busy_s(ring_bytes(self._topology, group, num_bytes)) + latency_s


def stage_table(pipeline: PipelinePlan, samples: tuple[int, ...], simulated: Simulated) -> Timetable:
    """When each rank starts each pass. Passes are blocks (`autotune.workloads.pass_names`); each holds 1 per micro-batch from forward to backward."""
    run, num_ranks = simulated.run, len(simulated.run.peak_bytes)
    blocks: dict[str, Block] = {}
    order: list[tuple[Slot, ...]] = [()] * num_ranks
    for task, rank, name, one in _passes(pipeline, samples, simulated):
        seconds = float(run.end_s[task] - run.start_s[task])
        blocks.setdefault(name, _block(name, one, rank, seconds))
        order[rank] += (Slot(block=name, microbatch=one[1], start_s=float(run.start_s[task])),)
    graph = BlockGraph(num_devices=num_ranks, memory=(math.inf,) * num_ranks, blocks=tuple(blocks.values()))
    return Timetable(graph=graph, num_microbatches=pipeline.micro_batches, order=tuple(order))


def span_names(pipeline: PipelinePlan, samples: tuple[int, ...], simulated: Simulated) -> dict[int, str]:
    """Per task that is a pass: the name of its span, as in a traced step."""
    return {task: span_name(name, one[1]) for task, _, name, one in _passes(pipeline, samples, simulated)}


def _passes(
    pipeline: PipelinePlan, samples: tuple[int, ...], simulated: Simulated
) -> Iterator[tuple[int, int, str, Pass]]:
    """Task, rank, block and pass, rank by rank in order."""
    labels = simulated.labels
    is_pass = (labels.kind == layout.FORWARD) | (labels.kind == layout.BACKWARD)
    for stage, several in enumerate(pipeline.replicas(samples)):
        members = [(rank, replica.passes) for replica in several for rank in replica.ranks]
        for number, (rank, passes) in enumerate(members):
            tasks = np.flatnonzero(is_pass & (labels.rank == rank)).tolist()
            for one, task in zip(passes, tasks, strict=True):
                yield task, rank, pass_name(one[0], stage, replica=number), one


def _block(name: str, one: Pass, rank: int, seconds: float) -> Block:
    kind, _ = one
    memory = {FORWARD: 1.0, INPUT: 0.0}.get(kind, -1.0)
    return Block(
        name=name, devices=(rank,), seconds=seconds, memory=memory, part=kind if kind in (INPUT, WEIGHT) else ""
    )
