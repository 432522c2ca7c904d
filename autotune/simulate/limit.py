"""The limit: a step time below which no lossless plan can go on this mix.

It is the largest of three bounds. Work over total speed, with the best fractional split. For each host, the bytes that
must leave and enter it under *any* algorithm over its bandwidth: its gradients must leave once and the sum must enter
once, whatever the collective. And the way of one sample through the fastest device.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.simulate.cost import compute_s
from results.record import Limit
from workloads.cluster import Cluster
from workloads.graph import OpGraph

_MANY = 10**6


def stated_sample_s(graph: OpGraph, cluster: Cluster) -> list[float]:
    """Least time per sample of each rank's device as the cluster file states it: fixed costs spread over many samples."""
    return [compute_s(graph, device, _MANY) / _MANY for device in cluster.devices]


def step_limit(sample_s: Sequence[float], cluster: Cluster, *, param_bytes: int, global_batch: int) -> Limit:
    """The limit for ranks that take `sample_s` per sample, joined by this cluster's links."""
    network_s = 0.0
    if len(cluster.hosts) > 1:
        links = [host.link for host in cluster.hosts if host.link is not None]
        network_s = max((param_bytes / min(link.up_bytes_per_s, link.down_bytes_per_s) for link in links), default=0.0)
    return Limit(
        compute_s=global_batch / sum(1 / seconds for seconds in sample_s),
        network_s=network_s,
        path_s=min(sample_s),
    )
