"""Sets of ranks by what a cluster is made of: kinds of devices, kinds of hosts, racks, hosts, devices of a kind in a host."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate, combinations

from autotune.workloads.cluster import Cluster
from autotune.workloads.rank_kinds import host_kinds, kinds_of_ranks, members, numbered
from autotune.workloads.split import RankCost

Ranks = tuple[int, ...]
_FEW_RANKS = 10
_MOST_BY_SPEED = 4
_SLOW_LINK = 3
"""A link so many times slower than the fastest one is slow."""


def distinct_sets(cluster: Cluster, able: Ranks, *, most: int) -> list[Ranks] | None:
    """Every set of these ranks, of like sets one; None where they are more than `most`."""
    if len(able) > _FEW_RANKS:
        return None
    found: dict[Hashable, Ranks] = {}
    for size in range(1, len(able) + 1):
        for ranks in combinations(able, size):
            found.setdefault(_content(cluster, ranks), ranks)
    return list(found.values()) if len(found) <= most else None


def _content(cluster: Cluster, ranks: Ranks) -> Hashable:
    """What a set holds: of each host its kind, and the device and place of each rank. Pairs name hosts, which then differ."""
    kinds, of_host = host_kinds(cluster), cluster.host_of_rank
    if cluster.pairs:
        return ranks
    places, devices = cluster.topology.places, numbered(cluster.devices)
    hosts: dict[int, list[tuple[int, int, int]]] = {}
    for rank in ranks:
        hosts.setdefault(of_host[rank], []).append((devices[rank], places[rank].nic, places[rank].island))
    return tuple(sorted((kinds[host], tuple(sorted(_renumbered(held)))) for host, held in hosts.items()))


def _renumbered(held: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """With islands and NICs counted from 0 in each host."""
    held = sorted(held)
    nics, islands = numbered(nic for _, nic, _ in held), numbered(island for _, _, island in held)
    return [(device, nic, island) for (device, _, _), nic, island in zip(held, nics, islands, strict=True)]


def starts(cluster: Cluster, able: Ranks, costs: Sequence[RankCost]) -> Iterator[Ranks]:
    """All ranks; the fastest rank; each kind of devices and each host of a kind alone; kinds and hosts in order of their
    speeds, of their links first and then of their devices, as many as one likes.
    """
    allowed = set(able)
    speed = {rank: 1 / max(costs[rank].per_sample_s, 1e-300) for rank in able}
    yield able
    yield (max(able, key=lambda rank: speed[rank]),)
    devices = [sorted(allowed & set(ranks)) for ranks in members(numbered(cluster.devices))]
    by_speed = sorted(filter(None, devices), key=lambda ranks: -max(speed[rank] for rank in ranks))
    yield from _firsts(by_speed)
    yield from (tuple(ranks) for ranks in by_speed)
    hosts = _ranks_of_hosts(cluster, allowed)
    by_link = sorted(hosts, key=lambda host: -_link_speed(cluster, host))
    kinds = host_kinds(cluster)
    yield from _firsts([hosts[host] for host in by_link], at=[kinds[host] for host in by_link])
    yield from {kinds[host]: tuple(ranks) for host, ranks in reversed(hosts.items())}.values()


def _firsts(parts: Sequence[Sequence[int]], at: Sequence[int] | None = None) -> Iterator[Ranks]:
    """The first part, the first two, and so on; with `at`, only where its value changes."""
    for number, ranks in enumerate(accumulate(map(list, parts), lambda a, b: a + b)):
        if at is None or number + 1 == len(at) or at[number] != at[number + 1]:
            yield tuple(sorted(ranks))


def sets_by_speed(cluster: Cluster, speeds: Sequence[float]) -> list[Ranks]:
    """What one tries without predictions: the fastest kinds of devices only, and the hosts without slow links only; the largest
    sets first. `speeds`: samples per second of each rank, relative.
    """
    every = range(len(cluster.devices))
    kinds = sorted(members(numbered(cluster.devices)), key=lambda ranks: -max(speeds[rank] for rank in ranks))
    links = [_link_speed(cluster, host) for host in cluster.host_of_rank]
    near = tuple(rank for rank in every if links[rank] * _SLOW_LINK >= max(links))
    found = dict.fromkeys(sorted((near, *_firsts(kinds)), key=len, reverse=True))
    return [ranks for ranks in found if 0 < len(ranks) < len(every)][:_MOST_BY_SPEED]


def neighbours(cluster: Cluster, able: Ranks, ranks: Ranks) -> Iterator[Ranks]:
    """Sets that are a move away: without or with one of the cluster's parts."""
    used, allowed = set(ranks), set(able)
    seen = {ranks}
    for part in _parts(cluster, used, allowed):
        for changed in (used - part, used | (part & allowed)):
            found = tuple(sorted(changed))
            if found and found not in seen:
                seen.add(found)
                yield found


def _parts(cluster: Cluster, used: set[int], allowed: set[int]) -> Iterator[set[int]]:
    kinds, hosts, kind_of_host = kinds_of_ranks(cluster), _ranks_of_hosts(cluster, allowed), host_kinds(cluster)
    yield from map(set, members(numbered(cluster.devices)))
    for alike in members(kind_of_host):
        yield {rank for host in alike for rank in hosts.get(host, ())}
    racks = numbered(host.rack or f"/{number}" for number, host in enumerate(cluster.hosts))
    if cluster.racks:
        for inside in members(racks):
            yield {rank for host in inside for rank in hosts.get(host, ())}
    for alike in members(kind_of_host):
        yield from _hosts_of_a_kind([host for host in alike if host in hosts], hosts, used)
    for alike_ranks in members(kinds):
        yield from _devices_of_a_kind(sorted(allowed & set(alike_ranks)), cluster.host_of_rank, used)


def _hosts_of_a_kind(alike: list[int], hosts: dict[int, list[int]], used: set[int]) -> Iterator[set[int]]:
    """Of the hosts in use the last and the last half; of the others the first, and as many as are in use."""
    inside = [host for host in alike if used.intersection(hosts[host])]
    outside = [host for host in alike if not used.intersection(hosts[host])]
    for chosen in (inside[-1:], inside[len(inside) // 2 :], outside[:1], outside[: len(inside)]):
        yield {rank for host in chosen for rank in hosts[host]}


def _devices_of_a_kind(alike: list[int], host_of_rank: Sequence[int], used: set[int]) -> Iterator[set[int]]:
    """One device; and of each host in use the last half, or what is left of it."""
    inside, outside = [rank for rank in alike if rank in used], [rank for rank in alike if rank not in used]
    begun = {host_of_rank[rank] for rank in inside}
    yield set(inside[-1:])
    yield set(next(([rank] for rank in outside if host_of_rank[rank] in begun), outside[:1]))
    halves: set[int] = set()
    for host in begun:
        here = [rank for rank in inside if host_of_rank[rank] == host]
        halves |= set(here[math.ceil(len(here) / 2) :])
    yield halves
    yield {rank for rank in outside if host_of_rank[rank] in begun}


def _ranks_of_hosts(cluster: Cluster, allowed: set[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for rank, host in enumerate(cluster.host_of_rank):
        if rank in allowed:
            found.setdefault(host, []).append(rank)
    return found


def _link_speed(cluster: Cluster, host: int) -> float:
    link = cluster.hosts[host].link
    return math.inf if link is None else min(link.up_bytes_per_s, link.down_bytes_per_s)
