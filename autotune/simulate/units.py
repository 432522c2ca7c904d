"""What travels in a step: a plan's buckets or partitions with their bytes, order, owners and loads on the links."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from autotune.simulate.collectives import Load, all_reduce_latency_s, all_reduce_loads
from autotune.simulate.costs import NO_OVERHEAD, Costs
from autotune.simulate.data_parallel import Units
from autotune.simulate.engine import Floats, Ints
from workloads.buckets import bucket_indices, ddp_bucket_indices, partitions
from workloads.cluster import Cluster
from workloads.graph import OpGraph
from workloads.plan import CommPlan

WIRE_SHARE = {"none": 1.0, "fp16": 0.5, "bf16": 0.5}
"""Bytes on the wire per byte of gradient."""


class UnitMaker:
    """Cuts the gradients of one workload for one mix after another plan."""

    def __init__(self, graph: OpGraph, costs: Costs) -> None:
        order = {op.name: index for index, op in enumerate(graph.ops)}
        self._costs = costs
        self._sizes = [parameter.num_bytes for parameter in reversed(graph.parameters)]
        self._op_of = np.array([order[parameter.op] for parameter in reversed(graph.parameters)], np.int64)
        self._links: dict[str, tuple[Ints, Floats, float]] = {}

    def make(self, comm: CommPlan, codec: str) -> Units:
        """The units of a data-parallel plan, in the order in which they are posted."""
        num_bytes, first_op = self._cut(comm)
        wire_bytes = num_bytes * WIRE_SHARE[codec]
        links, per_byte, latency_s = self._loads(comm.collective)
        return Units(
            wire_bytes=wire_bytes,
            ready_op=np.minimum.accumulate(first_op),  # a unit that is complete waits for those before it
            first_op=first_op,
            priority=first_op if comm.reducer == "scheduled" else np.arange(len(num_bytes)),
            fixed_s=self._costs.transports.get(comm.transport, NO_OVERHEAD).overhead(wire_bytes),
            latency_s=latency_s,
            load_link=links,
            load_per_byte=per_byte,
        )

    def _cut(self, comm: CommPlan) -> tuple[Floats, Ints]:
        """Bytes of each unit, and the first op of the forward pass that reads its parameters."""
        if not self._sizes:
            return np.zeros(0), np.zeros(0, np.int64)
        if comm.reducer == "scheduled":
            parts = list(partitions(comm, self._sizes))
            first_op = [self._op_of[gradients].min() for gradients, _ in parts]
            return np.array([num_bytes for _, num_bytes in parts], np.float64), np.array(first_op, np.int64)
        cut = ddp_bucket_indices if comm.reducer == "ddp" else bucket_indices
        starts = [bucket[0] for bucket in cut(comm.bucket_bytes, self._sizes)]
        num_bytes = np.add.reduceat(np.array(self._sizes, np.float64), starts)
        return num_bytes, np.minimum.reduceat(self._op_of, starts)

    def _loads(self, collective: str) -> tuple[Ints, Floats, float]:
        if collective not in self._links:
            kind = "ring" if collective == "server" else collective  # a server's hops are made one by one
            cluster = self._costs.cluster
            self._links[collective] = (*link_loads(cluster, kind), all_reduce_latency_s(kind, cluster))
        return self._links[collective]


def link_loads(cluster: Cluster, collective: str) -> tuple[Ints, Floats]:
    """What one byte of an all-reduce puts on each link: host h has links 2h (up) and 2h + 1 (down)."""
    if len(cluster.devices) < 2 or len(cluster.hosts) < 2:
        return np.zeros(0, np.int64), np.zeros(0)
    loads = as_links(cluster, all_reduce_loads(collective, cluster, 1.0))
    return np.array([link for link, _ in loads], np.int64), np.array([part for _, part in loads], np.float64)


def as_links(cluster: Cluster, loads: Iterable[Load]) -> list[tuple[int, float]]:
    """(link, bytes) of what is put on hosts; a host without a link costs nothing."""
    total: dict[int, float] = {}
    for load in loads:
        if cluster.hosts[load.host].link is not None:
            for link, part in ((2 * load.host, load.up_bytes), (2 * load.host + 1, load.down_bytes)):
                total[link] = total.get(link, 0.0) + part
    return [(link, part) for link, part in total.items() if part > 0]


def link_speeds(cluster: Cluster) -> Floats:
    """Bytes per second of every link, in the numbering of `link_loads`."""
    speeds = [
        speed
        for host in cluster.hosts
        for speed in (
            (host.link.up_bytes_per_s, host.link.down_bytes_per_s) if host.link is not None else (np.inf, np.inf)
        )
    ]
    return np.array(speeds, np.float64)
