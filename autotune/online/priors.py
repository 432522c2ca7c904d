"""What is known of a job before its steps show anything: the model, and what profiles or the mix say of messages and links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.online.model_sizes import ModelSizes
from autotune.simulate.collectives import Load, all_reduce_latency_s, all_reduce_loads, plan_shares, shard_loads
from autotune.simulate.cost_tables import Costs
from autotune.workloads.cluster import Cluster
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import CommPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What is known of a job beside what its steps show. Everything but the model may be unknown."""

    model: ModelSizes
    shards_gain: float | None = None
    """How many times longer a ring takes per byte than shards on the links as they were stated, profiled or looked at."""
    other_owners: Mapping[tuple[float, ...], float] = field(default_factory=dict)
    """The same for shards whose owners these links do not call for, by their shares."""
    message_s: float | None = None
    """What a collective takes however few its bytes, as profiled or as windows of other plans have shown."""
    codec_s_per_byte: Mapping[str, float] = field(default_factory=dict)
    """Encoding and decoding on the slowest rank, per byte of gradients, as profiled."""

    def collective_gain(self, comm: CommPlan) -> float:
        """How many times longer a ring takes per byte than a plan's collective; 1 where nobody knows."""
        if comm.collective != "shards":
            return 1.0
        return self.other_owners.get(comm.shares, self.shards_gain or 1.0)

    def on_links(self, now: Cluster, stated: Cluster, running: CommPlan) -> Known:
        """The same where links are as in `now`, while a plan runs that was made for others."""
        ring_s = seconds_per_byte("ring", now)
        stale = {(): plan_shares(stated), running.shares: running.shares or plan_shares(stated)}
        return replace(
            self,
            shards_gain=shards_gain(now),
            other_owners={
                shares: ring_s / _slowest_s(shard_loads(now.host_of_rank, owned, 1.0), now)
                for shares, owned in stale.items()
            },
        )


def known_of(graph: OpGraph, costs: Costs | None, transport: str) -> Known:
    """All that a cost model says; of a job without one, the model alone."""
    model = ModelSizes.of(graph)
    if costs is None:
        return Known(model=model)
    overhead = costs.transports.get(transport)
    latency_s = all_reduce_latency_s("ring", costs.cluster)
    return Known(
        model=model,
        shards_gain=shards_gain(costs.cluster),
        message_s=float(overhead.overhead(np.zeros(1))[0]) + latency_s if overhead is not None else latency_s or None,
        codec_s_per_byte={
            codec: float((costs.encode[codec].slope_s + costs.decode[codec].slope_s).max())
            for codec in sorted(set(costs.encode) & set(costs.decode))
        },
    )


def shards_gain(cluster: Cluster) -> float | None:
    """How many times longer a ring takes per byte than shards; None where links are not stated."""
    ring_s, shards_s = (seconds_per_byte(kind, cluster) for kind in ("ring", "shards"))
    return ring_s / shards_s if ring_s > 0 and shards_s > 0 else None


def seconds_per_byte(kind: str, cluster: Cluster) -> float:
    """Of an all-reduce, on the link that takes longest; 0 where no link is stated."""
    return _slowest_s(all_reduce_loads(kind, cluster, 1.0), cluster)


def _slowest_s(loads: Iterable[Load], cluster: Cluster) -> float:
    times = [0.0]
    for load in loads:
        if (link := cluster.hosts[load.host].link) is not None and len(cluster.hosts) > 1:
            times += [load.up_bytes / link.up_bytes_per_s, load.down_bytes / link.down_bytes_per_s]
    return max(times)
