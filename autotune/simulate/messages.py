"""The messages of a step: buckets or partitions of a plan, with their bytes, order, owners and loads on the links."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from autotune.simulate.collectives import (
    Load,
    all_reduce_latency_s,
    all_reduce_loads,
    gather_loads,
    server_shares,
    shard_loads,
)
from autotune.simulate.cost_tables import NO_OVERHEAD, Costs
from autotune.simulate.data_parallel import FusionBuffers
from autotune.simulate.factors import factor_bytes
from autotune.simulate.task_graph import Floats, Ints
from autotune.workloads.cluster import Cluster
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import (
    CODECS,
    COLLECTIVES,
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
        self._num_ranks, num_hosts = len(costs.cluster.devices), len(costs.cluster.hosts)
        self._links = np.arange(2 * num_hosts if num_hosts > 1 else 0, dtype=np.int64)
        self._wires: dict[str, Floats] = {}
        self._per_byte: dict[tuple[str, tuple[int, ...], tuple[float, ...]], Floats] = {}
        self._latency_s = {
            kind: all_reduce_latency_s("shards" if kind == "server" else kind, costs.cluster) for kind in COLLECTIVES
        }

    def make(self, sends: Sends) -> FusionBuffers:
        """The fusion buffers of a data-parallel plan, in the order in which they are posted."""
        comm = sends.comm
        is_scheduled = comm.is_scheduled
        rows = self._sums(sends) if _only_sums(sends) else self._mixed(sends)
        if is_scheduled:
            rows = rows.ordered(np.argsort(-rows.first_op, kind="stable"))
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
            fixed_s=rows.num_sums * self._costs.transports.get(comm.transport, NO_OVERHEAD).overhead(rows.wire_bytes),
            latency_s=rows.num_rounds * self._latency_s[comm.collective],
            load_link=self._links,
            load_bytes=rows.loads,
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
            loads=wire_bytes[:, None] * self._sum_per_byte(comm),
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
            loads=loads.reshape(len(messages), len(self._links)),
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
            loads=self._on_links(gather_loads(self._costs.cluster.host_of_rank, sizes)),
            rebuilt_op=op,
        )

    def _round_loads(self, kind: str, num_bytes: float, comm: CommPlan) -> Floats:
        hosts = self._costs.cluster.host_of_rank
        if kind == SUM:
            return self._sum_per_byte(comm) * num_bytes
        if kind == GATHER:
            return self._on_links(gather_loads(hosts, [num_bytes] * self._num_ranks))
        return self._on_links(gather_loads(hosts, [num_bytes / self._num_ranks] * self._num_ranks))

    def _sum_per_byte(self, comm: CommPlan) -> Floats:
        key = (comm.collective, comm.servers, comm.shares)
        if key not in self._per_byte:
            self._per_byte[key] = self._on_links(sum_loads(comm, self._costs.cluster))
        return self._per_byte[key]

    def _on_links(self, loads: Iterable[Load]) -> Floats:
        """Bytes on every link; none where all ranks share a host."""
        total = np.zeros(len(self._links))
        if len(total):
            for link, num_bytes in as_links(self._costs.cluster, loads):
                total[link] += num_bytes
        return total


def sum_loads(comm: CommPlan, cluster: Cluster) -> list[Load]:
    """The load of one byte of an all-reduce on the links of hosts."""
    if comm.collective == "server":
        return shard_loads(cluster.host_of_rank, server_shares(len(cluster.devices), comm.servers), 1.0)
    if comm.shares:
        return shard_loads(cluster.host_of_rank, comm.shares, 1.0)
    return all_reduce_loads(comm.collective, cluster, 1.0)


def as_links(cluster: Cluster, loads: Iterable[Load]) -> list[tuple[int, float]]:
    """(link, bytes) of loads on hosts: host h has links 2h (up) and 2h + 1 (down). A host without a link costs nothing."""
    total: dict[int, float] = {}
    for load in loads:
        if cluster.hosts[load.host].link is not None:
            for link, part in ((2 * load.host, load.up_bytes), (2 * load.host + 1, load.down_bytes)):
                total[link] = total.get(link, 0.0) + part
    return [(link, part) for link, part in total.items() if part > 0]


def link_speeds(cluster: Cluster) -> Floats:
    """Bytes per second of every link, in the numbering of `as_links`."""
    speeds = [
        speed
        for host in cluster.hosts
        for speed in (
            (host.link.up_bytes_per_s, host.link.down_bytes_per_s) if host.link is not None else (np.inf, np.inf)
        )
    ]
    return np.array(speeds, np.float64)
