"""Ranks that are alike on paper: equal devices in equal places. A search treats a kind of ranks, a host or an island as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence

from autotune.workloads.cluster import Cluster, Host


def kinds_of_ranks(cluster: Cluster) -> tuple[int, ...]:
    """A number for each rank, equal for equal devices in equal hosts. Kinds are numbered in the order of their first rank."""
    hosts = [_host_key(host) for host in cluster.hosts]
    devices = cluster.devices
    return numbered((device, hosts[host]) for device, host in zip(devices, cluster.host_of_rank, strict=True))


def host_kinds(cluster: Cluster) -> tuple[int, ...]:
    """A number for each host, equal for hosts with equal devices and links."""
    return numbered((_host_key(host), host.devices) for host in cluster.hosts)


def numbered(keys: Iterable[Hashable]) -> tuple[int, ...]:
    """The keys as numbers, in the order in which they first come."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


def members(kinds: Sequence[int]) -> list[list[int]]:
    """The places of each kind."""
    found: list[list[int]] = [[] for _ in range(max(kinds, default=-1) + 1)]
    for place, kind in enumerate(kinds):
        found[kind].append(place)
    return found


def _host_key(host: Host) -> Hashable:
    """All that distinguishes a host but its name and devices."""
    return dataclasses.replace(host, name="", devices=(), nic_of_device=tuple(sorted(host.nic_of_device)))
