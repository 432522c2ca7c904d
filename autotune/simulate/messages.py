"""The messages of a step: buckets or partitions of a plan, with their bytes, order, owners and loads on the links."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Self

import numpy as np

from autotune.simulate.collectives import all_reduce_latency_s, sum_phases
from autotune.simulate.cost_tables import Costs, Lines
from autotune.simulate.data_parallel import FusionBuffers
from autotune.simulate.edge_loads import EdgeLoads, gather_bytes
from autotune.simulate.factors import factor_bytes
from autotune.simulate.task_graph import Floats, Ints, Site
from autotune.simulate.tasks import NO_LIMIT, make_site
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import (
    CODECS,
    CommPlan,
    CompressionPlan,
    Plan,
    Priority,
    ReducerKind,
    one_round_codecs,
)
from autotune.workloads.plan.buckets import (
    bucket_starts,
    bytes_reached,
    ddp_starts,
    num_partitions,
    unit_indices,
    unit_starts,
)
from autotune.workloads.plan.codecs import wire_bytes
from autotune.workloads.plan.wire import GATHER, SUM
from autotune.workloads.topology import Topology

_WIDTH = 4
"""Bytes of a value, for a parameter without a recorded shape."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sends:
    """The part of a plan that determines its messages. The split matters only for sufficient factors, whose rows are samples."""

    comm: CommPlan
    compression: CompressionPlan
    samples: tuple[int, ...] = ()

    @classmethod
    def of(cls, plan: Plan) -> Self:
        return cls(
            comm=plan.comm,
            compression=plan.compression,
            samples=plan.batch.samples if plan.compression.factors else (),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Message:
    """One transfer."""

    gradients: list[int]
    gradient_bytes: float
    wire_bytes: float
    """Bytes that count against the credit."""
    loads: Floats
    """On each link."""
    codec: str = "none"
    num_rounds: int = 1
    num_sums: int = 1
    """How often the software overhead of a collective is paid: once per sum; rounds of messages overlap."""
    rebuilt_op: int = -1
    """The op whose gradient is the product of sufficient factors, if any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """Transfers as arrays, one entry each."""

    gradient_bytes: Floats
    wire_bytes: Floats
    first_op: Ints
    loads: Floats
    codec: Ints
    num_rounds: Floats
    num_sums: Floats
    rebuilt_op: Ints

    def ordered(self, order: Ints) -> _Rows:
        return _Rows(**{part.name: getattr(self, part.name)[order] for part in fields(self)})


def _only_sums(sends: Sends) -> bool:
    return (
        sends.comm.reducer != ReducerKind.AVERAGED
        and sends.compression.codec in one_round_codecs()
        and not sends.compression.factors
        and not sends.compression.by_kind
    )


class FusionBufferMaker:
    """Makes the fusion buffers of any plan of one workload on one cluster."""

    def __init__(self, graph: OpGraph, costs: Costs) -> None:
        order = {op.name: index for index, op in enumerate(graph.ops)}
        parameters = list(reversed(graph.parameters))
        self._graph, self._costs = graph, costs
        self._sizes = [parameter.num_bytes for parameter in parameters]
        self._kinds = [parameter.kind for parameter in parameters]
        self._shapes = [parameter.shape or (max(parameter.num_bytes // _WIDTH, 1),) for parameter in parameters]
        self._op_of = np.array([order[parameter.op] for parameter in parameters], np.int64)
        self._size_array, self._reached = np.array(self._sizes, np.float64), bytes_reached(self._sizes)
        self._topology, self._num_ranks = costs.cluster.topology, len(costs.cluster.devices)
        self._wires: dict[str, Floats] = {}
        self._sums_per_byte: dict[tuple[str, tuple[int, ...], tuple[float, ...]], tuple[Ints, Floats]] = {}
        self._latency_s = cache(
            lambda kind: all_reduce_latency_s("shards" if kind == "server" else kind, costs.cluster)
        )

    def make(self, sends: Sends) -> FusionBuffers:
        """The fusion buffers of a data-parallel plan, in the order in which they are posted."""
        comm = sends.comm
        is_scheduled = comm.is_scheduled
        rows = self._sums(sends) if _only_sums(sends) else self._mixed(sends)
        if is_scheduled:
            rows = rows.ordered(np.argsort(-rows.first_op, kind="stable"))
        costs = self._costs.all_reduce(comm.transport, comm.collective)
        serial_s = costs.serial(rows.wire_bytes)
        load_link, load_bytes = self._sum_per_byte(comm)[0], rows.loads
        if serial_s.any():  # a phase of its own, which transfers pass one after another
            load_link = np.concatenate([np.array([len(self._topology.edges), -1], np.int64), load_link])
            own = np.stack([rows.num_sums * serial_s, np.zeros(len(serial_s))], axis=1)
            load_bytes = np.ascontiguousarray(np.concatenate([own, load_bytes], axis=1))
        return FusionBuffers(
            wire_bytes=rows.wire_bytes,
            gradient_bytes=rows.gradient_bytes,
            codec=rows.codec,
            rebuilt_op=rows.rebuilt_op,
            # A complete bucket waits for those before it.
            ready_op=rows.first_op if is_scheduled else np.minimum.accumulate(rows.first_op),
            first_op=rows.first_op,
            priority=rows.first_op
            if is_scheduled and comm.priority == Priority.LAYER
            else np.arange(len(rows.first_op)),
            fixed_s=rows.num_sums * (costs.overhead(rows.wire_bytes) - serial_s),
            latency_s=rows.num_rounds * self._latency_s(comm.collective),
            load_link=load_link,
            load_bytes=load_bytes,
        )

    def _sums(self, sends: Sends) -> _Rows:
        """For plans without compression, as arrays: a search makes thousands of these."""
        comm = sends.comm
        if not self._sizes:
            return self._mixed(sends)
        starts = np.fromiter(self._starts(comm), np.int64)
        num_bytes = np.add.reduceat(self._size_array, starts)
        wire_bytes = np.add.reduceat(self._wire_sizes(sends.compression.codec), starts)
        first_op = np.minimum.reduceat(self._op_of, starts)
        if comm.is_scheduled:
            parts = np.maximum(np.rint(wire_bytes / comm.partition_bytes), 1.0)
            repeats = parts.astype(np.int64)
            num_bytes, wire_bytes = np.repeat(num_bytes / parts, repeats), np.repeat(wire_bytes / parts, repeats)
            first_op = np.repeat(first_op, repeats)
        return _Rows(
            gradient_bytes=num_bytes,
            wire_bytes=wire_bytes,
            first_op=first_op,
            loads=wire_bytes[:, None] * self._sum_per_byte(comm)[1],
            codec=np.full(len(wire_bytes), CODECS.index(sends.compression.codec), np.int64),
            num_rounds=np.ones(len(wire_bytes)),
            num_sums=np.ones(len(wire_bytes)),
            rebuilt_op=np.full(len(wire_bytes), -1, np.int64),
        )

    def _starts(self, comm: CommPlan) -> Iterator[int]:
        """The first gradient of each bucket or fusion buffer."""
        if comm.is_scheduled:
            return unit_starts(comm.partition_bytes, self._reached)
        cut = ddp_starts if comm.reducer == ReducerKind.DDP else bucket_starts
        return cut(comm.bucket_bytes, self._reached)

    def _wire_sizes(self, codec: str) -> Floats:
        """Of every gradient by itself."""
        if codec not in self._wires:
            compression = CompressionPlan(codec=codec)
            sizes = [
                wire_bytes(compression, [shape], self._num_ranks, size // max(math.prod(shape), 1))[0][1]
                for shape, size in zip(self._shapes, self._sizes, strict=True)
            ]
            self._wires[codec] = np.array(sizes, np.float64)
        return self._wires[codec]

    def _mixed(self, sends: Sends) -> _Rows:
        """One message after the other."""
        if sends.comm.reducer == ReducerKind.AVERAGED:
            messages = [self._mean(sends)] if self._sizes else []
        else:
            messages = self._scheduled(sends)
        loads = np.array([message.loads for message in messages], np.float64)
        return _Rows(
            gradient_bytes=np.array([message.gradient_bytes for message in messages], np.float64),
            wire_bytes=np.array([message.wire_bytes for message in messages], np.float64),
            first_op=np.array([self._op_of[message.gradients].min() for message in messages], np.int64),
            loads=loads.reshape(len(messages), len(self._sum_per_byte(sends.comm)[0])),
            codec=np.array([CODECS.index(message.codec) for message in messages], np.int64),
            num_rounds=np.array([message.num_rounds for message in messages], np.float64),
            num_sums=np.array([message.num_sums for message in messages], np.float64),
            rebuilt_op=np.array([message.rebuilt_op for message in messages], np.int64),
        )

    def _mean(self, sends: Sends) -> _Message:
        """Averaging of all parameters every so many steps: its cost per step."""
        whole = self._whole(list(range(len(self._sizes))), sends.comm, sends.compression)
        every = sends.comm.average_every
        return replace(whole, gradient_bytes=0.0, wire_bytes=whole.wire_bytes / every, loads=whole.loads / every)

    def _scheduled(self, sends: Sends) -> list[_Message]:
        names = [op.name for op in self._graph.ops]
        factored = set(sends.compression.factors)
        layers = [names[op] if names[op] in factored else None for op in self._op_of]
        sends.compression.check_kinds(self._kinds)
        settings = [sends.compression.for_kind(kind) for kind in self._kinds]
        kinds = [setting.codec for setting in settings]
        messages = []
        for gradients in unit_indices(sends.comm.partition_bytes, self._sizes, kinds=kinds, layers=layers):
            if layers[gradients[0]] is not None:
                messages.append(self._factors(gradients, sends))
            else:
                messages += self._cut(self._whole(gradients, sends.comm, settings[gradients[0]]), sends.comm)
        return messages

    def _whole(self, gradients: list[int], comm: CommPlan, compression: CompressionPlan) -> _Message:
        """A fusion buffer as its codec sends it, all rounds together."""
        num_bytes, shapes = sum(self._sizes[index] for index in gradients), [self._shapes[index] for index in gradients]
        num_values = sum(map(math.prod, shapes))
        width = num_bytes // num_values
        rounds = wire_bytes(compression, shapes, self._num_ranks, width)
        return _Message(
            gradients=gradients,
            gradient_bytes=num_bytes,
            wire_bytes=max(size for _, size in rounds),
            loads=np.sum([self._round_loads(kind, size, comm) for kind, size in rounds], axis=0),
            codec=compression.codec,
            num_rounds=len(rounds),
            num_sums=max(sum(kind == SUM for kind, _ in rounds), 1),
        )

    def _cut(self, message: _Message, comm: CommPlan) -> list[_Message]:
        """Sums are cut into partitions; messages from rank to rank are not."""
        if message.codec not in one_round_codecs():
            return [message]
        count = num_partitions(comm.partition_bytes, int(message.wire_bytes), int(message.wire_bytes))
        part = replace(
            message,
            gradient_bytes=message.gradient_bytes / count,
            wire_bytes=message.wire_bytes / count,
            loads=message.loads / count,
        )
        return [part] * count

    def _factors(self, gradients: list[int], sends: Sends) -> _Message:
        """An all-gather of the rows of every rank."""
        op = int(self._op_of[gradients[0]])
        sizes = factor_bytes(self._graph.ops[op], sends.samples)
        return _Message(
            gradients=gradients,
            gradient_bytes=0.0,
            wire_bytes=sum(sizes),
            loads=self._gathered(sizes, sends.comm),
            rebuilt_op=op,
        )

    def _round_loads(self, kind: str, num_bytes: float, comm: CommPlan) -> Floats:
        if kind == SUM:
            return self._sum_per_byte(comm)[1] * num_bytes
        return self._gathered([num_bytes / (1 if kind == GATHER else self._num_ranks)] * self._num_ranks, comm)

    def _gathered(self, bytes_of_rank: Sequence[float], comm: CommPlan) -> Floats:
        """An all-gather, in the columns of the plan's sums: it has one phase, the first."""
        columns, _ = self._sum_per_byte(comm)
        loads = np.zeros(len(columns))
        for edge, num_bytes in gather_bytes(self._topology, range(self._num_ranks), bytes_of_rank).items():
            loads[edge] = num_bytes
        return loads

    def _sum_per_byte(self, comm: CommPlan) -> tuple[Ints, Floats]:
        """The columns of a plan's loads, which are all edges, once per phase; and the bytes on them per byte of a sum."""
        key = (comm.collective, comm.servers, comm.shares)
        if key not in self._sums_per_byte:
            phases = sum_phases(comm, self._costs.cluster, 1.0)
            self._sums_per_byte[key] = phase_columns(phases, len(self._topology.edges))
        return self._sums_per_byte[key]


def phase_columns(phases: Sequence[EdgeLoads], num_edges: int) -> tuple[Ints, Floats]:
    """All edges in each phase, with -1 between phases, and the bytes on each."""
    columns = [np.append(np.arange(num_edges), -1) for _ in phases]
    loads = np.zeros((len(phases), num_edges + 1))
    for phase, row in zip(phases, loads, strict=True):
        row[list(phase)] = list(phase.values())
    return np.concatenate(columns)[:-1].astype(np.int64), loads.reshape(-1)[:-1]


def link_speeds(topology: Topology) -> Floats:
    """Bytes per second of every edge; then, as if it were another one, seconds of the software of all-reduces per second."""
    return np.array([*(edge.bytes_per_s for edge in topology.edges), 1.0], np.float64)


def codec_s(graph: OpGraph, costs: Costs, plan: Plan, buffers: FusionBuffers, samples: Floats) -> tuple[Floats, Floats]:
    """Seconds to encode and decode each fusion buffer on each rank."""
    encode_s, decode_s = (_side_s(lines, plan, buffers) for lines in (costs.encode, costs.decode))
    return encode_s, decode_s + _rebuild_s(graph, costs, buffers, samples) if plan.compression.factors else decode_s


def _side_s(lines: Mapping[str, Lines], plan: Plan, buffers: FusionBuffers) -> Floats:
    """Seconds that codecs take per rank and fusion buffer, to encode or to decode."""
    seconds = np.zeros((len(plan.batch.samples), len(buffers.wire_bytes)))
    for codec in lines.keys() & set(plan.compression.codecs):
        sent = (buffers.gradient_bytes > 0) & (buffers.codec == CODECS.index(codec))
        seconds += lines[codec].table(buffers.gradient_bytes) * sent
    return seconds


def _rebuild_s(graph: OpGraph, costs: Costs, buffers: FusionBuffers, samples: Floats) -> Floats:
    """Seconds of the product of sufficient factors over the other ranks' rows: one of the layer's matrix products, for their
    samples. The backward pass already includes the rank's own rows.
    """
    made = buffers.rebuilt_op >= 0
    per_sample: Floats = _product_s(graph, costs)[:, np.where(made, buffers.rebuilt_op, 0)] * made
    others = samples.sum() - samples
    taken: Floats = per_sample * others[:, None]
    return taken


def _product_s(graph: OpGraph, costs: Costs) -> Floats:
    """Seconds that one more sample adds to one matrix product of each op: the arithmetic of the forward pass where it is stated,
    else a share of what was measured forward and backward together, in which the errors of probes partly cancel.
    """
    num_products = np.array([1 + op.backward_factor for op in graph.ops])
    measured = (costs.forward.per_sample_s + costs.backward.per_sample_s) / num_products
    taken: Floats = np.where(costs.forward.arithmetic_s > 0, costs.forward.arithmetic_s, measured)
    return taken


def make_stage_site(costs: Costs, num_connections: int) -> Site:
    """Of plans with stages or groups of ops. Sums are limited by links only; over real links, the messages of a connection
    follow each other.
    """
    return make_site(
        len(costs.cluster.devices),
        link_speeds(costs.cluster.topology),  # type: ignore[arg-type]
        slots=(NO_LIMIT, *[1] * num_connections),
        credit_bytes=(np.inf,) * (1 + num_connections),
        serialized=costs.serialized_links,
    )
