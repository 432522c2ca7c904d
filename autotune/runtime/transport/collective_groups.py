"""Collectives that we carry out ourselves, as groups around a transport's. `workloads.plan.choices` names the functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from autotune.runtime.transport.hierarchical_group import HierarchicalGroup
from autotune.runtime.transport.hierarchical_rounds import HostTree
from autotune.runtime.transport.shard_group import ShardGroup
from autotune.simulate.collectives import host_shares, owned_shares, server_shares
from autotune.workloads.cluster import Cluster


@dataclass(frozen=True, kw_only=True, slots=True)
class WrapGroup:
    """What a collective gets to be made with, on every rank."""

    inner: dist.ProcessGroup
    """It carries messages from rank to rank."""
    cluster: Cluster
    servers: Sequence[int] = ()
    shares: Sequence[float] = ()
    """Owner shares of ranks; empty: as the links of the cluster require."""


def owner_shards(request: WrapGroup) -> dist.ProcessGroup:
    return ShardGroup(request.inner, request.shares or owned_shares(request.cluster))


def servers(request: WrapGroup) -> dist.ProcessGroup:
    return ShardGroup(request.inner, server_shares(request.inner.size(), request.servers))


def hierarchical(request: WrapGroup) -> dist.ProcessGroup:
    return HierarchicalGroup(request.inner, HostTree.of(request.cluster.topology, None))


def hierarchical_shards(request: WrapGroup) -> dist.ProcessGroup:
    cluster = request.cluster
    owned = dict(enumerate(host_shares([1] * len(cluster.hosts), cluster)))
    return HierarchicalGroup(request.inner, HostTree.of(cluster.topology, owned))
