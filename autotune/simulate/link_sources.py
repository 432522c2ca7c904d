"""Links of a cluster that no file states, as profiles measured them: of hosts, of pairs of hosts, and inside hosts.

A host's link is the fastest of its pairs. A pair that is clearly slower than the links of both hosts allow has a limit of its own.
Messages between two ranks of one host give the link of each of its devices. What a cluster file states is never replaced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autotune.profilers.links import downlink, uplink
from autotune.results.store.profile import HostLink, LinkProfile, Profile
from autotune.workloads.cluster import Cluster, Device, Host
from autotune.workloads.topology import Fabric, Link, Pair

_CLEARLY = 0.9
"""A pair counts as slower than its hosts' links below this share of them: estimates differ by a few percent."""


def with_links(cluster: Cluster, profiles: Sequence[Profile]) -> Cluster:
    """The cluster with measured links where it states none."""
    inside_is_free = cluster.paces_links  # emulated hosts share one machine: what was measured inside is that machine's
    hosts = tuple(_with_links(host, profiles, inside_is_free=inside_is_free) for host in cluster.hosts)
    unstated = {host.name for host in cluster.hosts if host.link is None}
    pairs = tuple(pair for pair in _pairs(hosts, profiles) if unstated & set(pair.between))
    return replace(cluster, hosts=hosts, pairs=(*cluster.pairs, *pairs))


def profiled_cluster(profile: Profile, cluster: Cluster) -> Cluster:
    """The cluster that the profile was measured on: `cluster` itself, or one made of the links in the profile."""
    if profile.cluster_fingerprint == cluster.fingerprint():
        return with_links(cluster, [profile])
    names = dict.fromkeys(rank.host for rank in profile.ranks)
    hosts = tuple(
        Host(name=name, devices=tuple(Device(name=rank.device) for rank in profile.ranks if rank.host == name))
        for name in names
    )
    return with_links(Cluster(name=profile.cluster, hosts=hosts), [profile])


def _with_links(host: Host, profiles: Sequence[Profile], *, inside_is_free: bool) -> Host:
    link, fabric = host.link, host.fabric
    if link is None:
        link = next((link for profile in profiles if (link := _host_link(host.name, profile)) is not None), None)
    if fabric is None and not inside_is_free:
        inside = (profile.link(host.name, host.name) for profile in profiles)
        device = next((_link_of(found, found) for found in inside if found is not None and _speed(found)), None)
        fabric = None if device is None else Fabric(device=device)
    return replace(host, link=link, fabric=fabric)


def _host_link(name: str, profile: Profile) -> Link | None:
    """As the profile states it, else as its pairs determine it."""
    stated = next((found for found in profile.hosts if found.host == name), None)
    if stated is not None:
        return _stated_link(stated)
    between = [link for link in profile.links if link.from_host != link.to_host]
    speeds = {(link.from_host, link.to_host): speed for link in between if (speed := _speed(link))}
    up, down = uplink(name, speeds), downlink(name, speeds)
    if up is None or down is None:
        return None
    latencies = [link.fit.latency_s for link in between if name in (link.from_host, link.to_host)]
    return Link(up_bytes_per_s=up.bytes_per_s, down_bytes_per_s=down.bytes_per_s, latency_s=min(latencies))


def _stated_link(found: HostLink) -> Link | None:
    if not found.up_bytes_per_s or not found.down_bytes_per_s:
        return None
    return Link(up_bytes_per_s=found.up_bytes_per_s, down_bytes_per_s=found.down_bytes_per_s, latency_s=found.latency_s)


def _pairs(hosts: Sequence[Host], profiles: Sequence[Profile]) -> list[Pair]:
    """Pairs that are slower than the links of their hosts."""
    links = {host.name: host.link for host in hosts if host.link is not None}
    found: dict[tuple[str, str], Pair] = {}
    for profile in profiles:
        for measured in profile.links:
            a, b = measured.from_host, measured.to_host
            if a == b or a not in links or b not in links or (a, b) in found or (b, a) in found:
                continue
            back = profile.link(b, a)
            allowed = (_allowed(links[a], links[b]), _allowed(links[b], links[a]))
            speeds = (_speed(measured), _speed(back) if back else 0.0)
            slow = [s if 0 < s < _CLEARLY * most else math.inf for s, most in zip(speeds, allowed, strict=True)]
            if min(slow) < math.inf:
                found[a, b] = Pair(between=(a, b), link=Link(up_bytes_per_s=slow[0], down_bytes_per_s=slow[1]))
    return list(found.values())


def _allowed(sender: Link, receiver: Link) -> float:
    return min(sender.up_bytes_per_s, receiver.down_bytes_per_s)


def _link_of(up: LinkProfile, down: LinkProfile) -> Link:
    return Link(up_bytes_per_s=_speed(up), down_bytes_per_s=_speed(down), latency_s=up.fit.latency_s)


def _speed(link: LinkProfile) -> float:
    """0 where no message was large enough to measure it."""
    return link.fit.bytes_per_s or 0.0
