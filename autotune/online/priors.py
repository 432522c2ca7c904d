"""Prior knowledge of a job, before any step is measured: the model, and what profiles or the cluster file state of links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.online.model_sizes import ModelSizes
from autotune.simulate.collectives import (
    Load,
    all_reduce_latency_s,
    all_reduce_loads,
    plan_shares,
    shard_loads,
    sum_phases,
)
from autotune.simulate.cost_tables import Costs
from autotune.workloads.cluster import Cluster
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import CommPlan
from autotune.workloads.plan.choices import HIERARCHICAL


@dataclass(frozen=True, kw_only=True, slots=True)
class Priors:
    """Knowledge of a job that does not come from its steps. Everything except the model is optional."""

    model: ModelSizes
    shards_gain: float | None = None
    """Seconds per byte of a ring over those of owner shards, on the links as stated, profiled or probed."""
    other_owners: Mapping[tuple[float, ...], float] = field(default_factory=dict)
    """The same for owner shards with other shares than these links require, by shares."""
    hierarchical_gains: Mapping[str, float] = field(default_factory=dict)
    """Seconds per byte of a ring over those of collectives that sum within hosts first, by collective."""
    message_s: float | None = None
    """Fixed seconds of a collective, as profiled."""
    codec_s_per_byte: Mapping[str, float] = field(default_factory=dict)
    """Encoding plus decoding on the slowest rank, per byte of gradients, as profiled."""

    def collective_gain(self, comm: CommPlan) -> float:
        """Seconds per byte of a ring over those of a plan's collective; 1 if not known."""
        if comm.collective != "shards":
            return self.hierarchical_gains.get(comm.collective, 1.0)
        return self.other_owners.get(comm.shares, self.shards_gain or 1.0)

    def on_links(self, now: Cluster, stated: Cluster, running: CommPlan) -> Priors:
        """The same priors on the links of `now`, while a plan runs whose owner shares were chosen for the stated links."""
        ring_s = seconds_per_byte("ring", now)
        stale = {(): plan_shares(stated), running.shares: running.shares or plan_shares(stated)}
        return replace(
            self,
            shards_gain=shards_gain(now),
            hierarchical_gains=hierarchical_gains(now),
            other_owners={
                shares: ring_s / _slowest_s(shard_loads(now.host_of_rank, owned, 1.0), now)
                for shares, owned in stale.items()
            },
        )


def priors_of(graph: OpGraph, costs: Costs | None, transport: str) -> Priors:
    """Priors from a cost model; without one, the model only."""
    model = ModelSizes.of(graph)
    if costs is None:
        return Priors(model=model)
    overhead = costs.transports.get(transport)
    latency_s = all_reduce_latency_s("ring", costs.cluster)
    return Priors(
        model=model,
        shards_gain=shards_gain(costs.cluster),
        hierarchical_gains=hierarchical_gains(costs.cluster),
        message_s=float(overhead.overhead(np.zeros(1))[0]) + latency_s if overhead is not None else latency_s or None,
        codec_s_per_byte={
            codec: float((costs.encode[codec].slope_s + costs.decode[codec].slope_s).max())
            for codec in sorted(set(costs.encode) & set(costs.decode))
        },
    )


def shards_gain(cluster: Cluster) -> float | None:
    """Seconds per byte of a ring over those of owner shards; None if the cluster states no links."""
    ring_s, shards_s = (seconds_per_byte(kind, cluster) for kind in ("ring", "shards"))
    return ring_s / shards_s if ring_s > 0 and shards_s > 0 else None


def hierarchical_gains(cluster: Cluster) -> dict[str, float]:
    """Seconds per byte of a ring over those of each collective that sums within hosts; none if no links are stated."""

    def seconds(kind: str) -> float:
        return sum(map(cluster.topology.busy_s, sum_phases(CommPlan(collective=kind), cluster, 1.0)))

    ring_s = seconds("ring")
    return {kind: ring_s / seconds(kind) for kind in HIERARCHICAL} if ring_s > 0 else {}


def seconds_per_byte(kind: str, cluster: Cluster) -> float:
    """Seconds per byte of an all-reduce on its slowest link; 0 if the cluster states no links."""
    return _slowest_s(all_reduce_loads(kind, cluster, 1.0), cluster)


def _slowest_s(loads: Iterable[Load], cluster: Cluster) -> float:
    times = [0.0]
    for load in loads:
        if (link := cluster.hosts[load.host].link) is not None and len(cluster.hosts) > 1:
            times += [load.up_bytes / link.up_bytes_per_s, load.down_bytes / link.down_bytes_per_s]
    return max(times)
