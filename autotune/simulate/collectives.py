"""What a collective puts on the hosts' links, and how often it waits for a latency, whoever carries it out.

Hosts meet in a switch; a host has an uplink and a downlink, and ranks of one host reach each other without either. An
emulated link and every prediction read these functions, so that they cannot disagree on what a collective is.

- **ring**: 2(N-1)/N of the bytes over every edge r → r+1, in 2(N-1) rounds. Best where all links are equal.
- **tree**: two trees that carry half each (NCCL's double binary trees): as many bytes per host as a ring, 2⌈log₂ N⌉ rounds.
- **shards**: each host owns a share of the bytes, everybody sends each owner its share and receives the sum. A host that owns
  nothing sends and receives its bytes once, which no algorithm can go below; with shares in proportion to what a link
  has to spare (a water level) the slowest host sets the pace only where it must.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from workloads.cluster import Cluster, Link


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What a transfer puts on one host's link."""

    host: int
    up_bytes: float
    down_bytes: float


def all_reduce_loads(kind: str, cluster: Cluster, num_bytes: float) -> list[Load]:
    """An all-reduce of `num_bytes` over all ranks."""
    if kind == "shards":
        return shard_loads([host.link for host in cluster.hosts], num_bytes)
    return ring_loads(cluster.host_of_rank, num_bytes)


def all_reduce_rounds(kind: str, num_ranks: int) -> int:
    """How many messages follow one another, each with a latency."""
    if num_ranks < 2:
        return 0
    return {"ring": 2 * (num_ranks - 1), "tree": 2 * math.ceil(math.log2(num_ranks)), "shards": 2}[kind]


def ring_loads(host_of_rank: Sequence[int], num_bytes: float) -> list[Load]:
    """Of a ring over the ranks in order; edges within a host cost no link. A double tree loads hosts of one rank alike."""
    size = len(host_of_rank)
    per_edge = 2 * (size - 1) / size * num_bytes
    ups, downs = [0] * (max(host_of_rank) + 1), [0] * (max(host_of_rank) + 1)
    for rank, host in enumerate(host_of_rank):
        if host != (right := host_of_rank[(rank + 1) % size]):
            ups[host] += 1
            downs[right] += 1
    return [
        Load(host=host, up_bytes=per_edge * ups[host], down_bytes=per_edge * downs[host])
        for host in sorted(set(host_of_rank))
    ]


def shard_loads(links: Sequence[Link | None], num_bytes: float) -> list[Load]:
    """Owners in proportion to what their links spare. Ranks of one host add up among themselves first."""
    others = len(links) - 1
    if others < 1:
        return [Load(host=0, up_bytes=0.0, down_bytes=0.0)]
    return [
        # To the other owners and back to everybody else; the same bytes come in.
        Load(host=host, up_bytes=(bytes_each := num_bytes * (1 - own + own * others)), down_bytes=bytes_each)
        for host, own in enumerate(owned_shares(links))
    ]


def owned_shares(links: Sequence[Link | None]) -> list[float]:
    """What each host owns so that the slowest is done soonest.

    Host h with share w sends (1 + w·(H-2)) of the bytes. Raise the time t from the least any host needs until the shares
    that fit below it, (t·bandwidth - 1)/(H-2), add up to one: between two hosts' first moments that sum is a line.
    """
    speeds = [min(link.up_bytes_per_s, link.down_bytes_per_s) if link is not None else math.inf for link in links]
    spread, count = len(links) - 2, len(links)
    unlimited = [speed == math.inf for speed in speeds]
    if any(unlimited):
        return [1 / sum(unlimited) if free else 0.0 for free in unlimited]
    if spread <= 0:
        return [1 / count] * count
    slowest = 1 / min(speeds)
    if sum(max(slowest * speed - 1, 0.0) for speed in speeds) >= spread:  # the slowest host's own bytes set the pace
        room = [max(slowest * speed - 1, 0.0) for speed in speeds]
        return [part / sum(room) for part in room]
    level = (spread + count) / sum(speeds)
    return [(level * speed - 1) / spread for speed in speeds]


def all_reduce_latency_s(kind: str, cluster: Cluster) -> float:
    """What the rounds of an all-reduce take however few the bytes; the slowest host sets the pace. None within a host."""
    latencies = [host.link.latency_s for host in cluster.hosts if host.link is not None]
    if len(cluster.hosts) == 1:
        return 0.0
    return all_reduce_rounds(kind, len(cluster.devices)) * max(latencies, default=0.0)


def hop_loads(host_of_rank: Sequence[int], source: int, target: int, num_bytes: float) -> list[Load]:
    """A message from rank to rank takes its sender's uplink and its receiver's downlink; within a host it takes none."""
    sender, receiver = host_of_rank[source], host_of_rank[target]
    if sender == receiver:
        return []
    return [
        Load(host=sender, up_bytes=float(num_bytes), down_bytes=0.0),
        Load(host=receiver, up_bytes=0.0, down_bytes=float(num_bytes)),
    ]


def hop_latency_s(cluster: Cluster, source: int, target: int) -> float:
    """As for one round of a ring: the slower of the two hosts sets it."""
    hosts = {cluster.host_of_rank[source], cluster.host_of_rank[target]}
    links = [cluster.hosts[host].link for host in hosts]
    return max((link.latency_s for link in links if link is not None), default=0.0) if len(hosts) > 1 else 0.0
