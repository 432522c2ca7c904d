"""How far a profile's links are from what a cluster file states: the figures that are published."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from autotune.results.store.profile import Profile
from autotune.simulate.collectives import all_reduce_latency_s, ring_loads
from autotune.workloads.cluster import Cluster, Host, Link, load_cluster

PUBLISHED = "profile"
_VARIABLE = "AUTOTUNE_PUBLISH"
"""Set by `nox -s profile`: the figures are kept under results/published."""


def publishing() -> bool:
    return bool(os.environ.get(_VARIABLE))


def link_errors(found: Profile, cluster_file: Path) -> dict[str, Any]:
    """Relative errors of each pair, each host's side that was seen to limit, and each all-reduce."""
    cluster = load_cluster(str(cluster_file))
    hosts = {host.name: host for host in cluster.hosts}
    return {
        "pairs": pair_errors(found, hosts),
        "hosts": host_errors(found, hosts),
        "collectives": all_reduce_errors(found, cluster),
    }


def pair_errors(found: Profile, hosts: dict[str, Host]) -> list[dict[str, Any]]:
    errors = []
    for link in found.links:
        sender, receiver = stated(hosts[link.from_host]), stated(hosts[link.to_host])
        speed, latency_s = (
            min(sender.up_bytes_per_s, receiver.down_bytes_per_s),
            max(sender.latency_s, receiver.latency_s),
        )
        assert link.fit.bytes_per_s is not None
        errors.append(
            {
                "from": link.from_host,
                "to": link.to_host,
                "stated_bytes_per_s": speed,
                "fitted_bytes_per_s": link.fit.bytes_per_s,
                "bandwidth_error": link.fit.bytes_per_s / speed - 1,
                "stated_latency_s": latency_s,
                "fitted_latency_s": link.fit.latency_s,
                "latency_error": link.fit.latency_s / latency_s - 1 if latency_s else None,
                "worst_error_of_fit": link.fit.worst_error,
            }
        )
    return errors


def host_errors(found: Profile, hosts: dict[str, Host]) -> list[dict[str, Any]]:
    """Only where a side was seen to limit is its bandwidth known from both sides."""
    errors = []
    for host in found.hosts:
        link = stated(hosts[host.host])
        up = host.up_bytes_per_s / link.up_bytes_per_s - 1 if host.up_bytes_per_s and host.up_is_limit else None
        down = (
            host.down_bytes_per_s / link.down_bytes_per_s - 1 if host.down_bytes_per_s and host.down_is_limit else None
        )
        errors.append({"host": host.host, "up_error": up, "down_error": down})
    return errors


def all_reduce_errors(found: Profile, cluster: Cluster) -> list[dict[str, Any]]:
    """Against the ring that emulated links charge; in a lab, only the bandwidth of the same ring."""
    per_byte_s = max(
        max(load.up_bytes / stated(host).up_bytes_per_s, load.down_bytes / stated(host).down_bytes_per_s)
        for load in ring_loads(cluster.host_of_rank, 1)
        for host in [cluster.hosts[load.host]]
    )
    latency_s = all_reduce_latency_s("ring", cluster)
    return [
        {
            "kind": one.kind,
            "transport": one.transport,
            "bandwidth_error": (one.fit.bytes_per_s or 0.0) * per_byte_s - 1,
            "fitted_latency_s": one.fit.latency_s,
            "latency_error": one.fit.latency_s / latency_s - 1 if latency_s else None,
            "worst_error_of_fit": one.fit.worst_error,
        }
        for one in found.collectives
        if one.kind == "all-reduce" and one.collective == "ring"
    ]


def stated(host: Host) -> Link:
    assert host.link is not None
    return host.link
