"""All-reduces: what they put on the links, and the number of latencies that they pay.

`sum_phases` answers for any topology, in bytes by edge (`autotune.simulate.edge_loads`): predictions and plans call it. The
functions that answer with a `Load` are for hosts with one link each to one switch, inside which messages are free: the
retuning of a running job calls them.

- **ring**: 2(N-1)/N of the bytes over every edge r → r+1, in 2(N-1) rounds, in an order that enters every rack, host and
  island once. Best where all links are equal.
- **tree**: two trees that carry half each (NCCL's double binary trees): as many bytes per host as a ring, 2⌈log₂ N⌉ rounds.
- **shards**: owner-based reduce-scatter + all-gather. Each rank owns a share of the bytes: every rank sends the owner its part
  and receives the sum. A rank that owns nothing sends and receives its bytes once, the minimum of any algorithm for a host
  of one rank. Shares are proportional to the spare bandwidth of each link (water filling), so the slowest host is
  the bottleneck only where it must be. There is no reduction within a host first: where ranks share a slow link, a ring
  loads it less.
- **hierarchical**: reduce-scatter within each host, a ring across hosts for each shard, all-gather within each host.
- **hierarchical-shards**: the same with owner shards of hosts instead of rings.

Predictions and process groups take their shares from here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from autotune.simulate.edge_loads import EdgeLoads, by_host, hierarchical_bytes, ring_bytes, shard_bytes
from autotune.workloads.cluster import Cluster, Link
from autotune.workloads.plan import CommPlan
from autotune.workloads.plan.choices import HIERARCHICAL
from autotune.workloads.topology import Topology, flat_ring

_PARTS = 1024
_HALVINGS = 100
_PAIR = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What a transfer puts on one host's link."""

    host: int
    up_bytes: float
    down_bytes: float


def sum_phases(comm: CommPlan, cluster: Cluster, num_bytes: float) -> list[EdgeLoads]:
    """Bytes on each edge, phase by phase, of a sum of `num_bytes` over all ranks."""
    topology, ranks = cluster.topology, range(len(cluster.devices))
    if comm.collective in HIERARCHICAL:
        shares = dict(enumerate(host_shares([1] * len(cluster.hosts), cluster)))
        return hierarchical_bytes(topology, ranks, num_bytes, None if comm.collective == "hierarchical" else shares)
    if comm.collective == "server":
        return [shard_bytes(topology, ranks, server_shares(len(ranks), comm.servers), num_bytes)]
    if comm.collective == "shards":
        return [shard_bytes(topology, ranks, comm.shares or owned_shares(cluster), num_bytes)]
    return [ring_bytes(topology, flat_ring(topology), num_bytes)]


def all_reduce_loads(kind: str, cluster: Cluster, num_bytes: float) -> list[Load]:
    """Loads of an all-reduce of `num_bytes` over all ranks."""
    if kind == "shards":
        return shard_loads(cluster.host_of_rank, owned_shares(cluster), num_bytes)
    return ring_loads(cluster.host_of_rank, num_bytes)


def all_reduce_rounds(kind: str, num_ranks: int) -> int:
    """Number of sequential messages; each pays one latency."""
    if num_ranks < 2:
        return 0
    if kind == "tree":
        return 2 * math.ceil(math.log2(num_ranks))
    return 2 * (num_ranks - 1) if kind == "ring" else 2


def num_messages(kind: str, host_of_rank: Sequence[Hashable]) -> int:
    """What a rank sends in an all-reduce, at most: software costs something for each."""
    if kind in HIERARCHICAL:
        sizes = Counter(host_of_rank).values()
        return 2 * (max(sizes) - 1) + 2 * (len(sizes) - 1)
    return 2 * (len(host_of_rank) - 1)


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


def shard_loads(host_of_rank: Sequence[int], shares: Sequence[float], num_bytes: float) -> list[Load]:
    """Of owner shards; traffic within a host loads no link.

    A host of n of the N ranks that owns W of the bytes sends n·(1-W) to the other owners and its sums, W, to each of the
    N-n ranks elsewhere; as much comes in.
    """
    loads = []
    for host in sorted(set(host_of_rank)):
        here = [share for at, share in zip(host_of_rank, shares, strict=True) if at == host]
        own, num_ranks = sum(here), len(here)
        leaving = num_bytes * (num_ranks * (1 - own) + own * (len(shares) - num_ranks))
        loads.append(Load(host=host, up_bytes=leaving, down_bytes=leaving))
    return loads


def owned_shares(cluster: Cluster) -> list[float]:
    """The share of each rank that minimizes the time of the slowest host or rack; equal shares where no link is stated.

    The devices of a host own equal shares: links within hosts are taken to be faster than those between.
    """
    size = len(cluster.devices)
    if len(cluster.hosts) == 1 or all(host.link is None for host in cluster.hosts):
        return [1 / size] * size
    of_hosts = host_shares([len(host.devices) for host in cluster.hosts], cluster)
    return [
        share / len(host.devices) for host, share in zip(cluster.hosts, of_hosts, strict=True) for _ in host.devices
    ]


def plan_shares(cluster: Cluster) -> tuple[float, ...]:
    """`owned_shares` as a plan states them: in parts of 1/1024, which sum to one exactly and are short to write."""
    owned = owned_shares(cluster)
    parts = [int(share * _PARTS) for share in owned]
    parts[max(range(len(owned)), key=lambda rank: owned[rank])] += _PARTS - sum(parts)
    return tuple(part / _PARTS for part in parts)


def server_shares(num_ranks: int, servers: Sequence[int]) -> list[float]:
    """The share of each rank where `servers` hold the parameters in equal shares."""
    return [1 / len(servers) if rank in servers else 0.0 for rank in range(num_ranks)]


def host_shares(ranks: Sequence[int], cluster: Cluster) -> list[float]:
    """What each host owns. `ranks`: how many of each host exchange data with the others."""
    speeds = [_speed(host.link) for host in cluster.hosts]
    racks = {rack.name: _speed(rack.link) for rack in cluster.racks}
    if all(speed == math.inf for speed in (*speeds, *racks.values())) or len(speeds) == 1:
        return [1 / len(speeds)] * len(speeds)
    return _rack_shares(ranks, speeds, cluster, racks) if racks else _flat_shares(ranks, speeds)


def _rack_shares(
    ranks: Sequence[int], speeds: Sequence[float], cluster: Cluster, racks: Mapping[str, float]
) -> list[float]:
    """As `_flat_shares`, with a bound for each rack as well: bisection for t, since the bounds of racks and hosts nest."""
    total = sum(ranks)
    members: dict[str, list[int]] = {}
    for number, host in enumerate(cluster.hosts):
        members.setdefault(host.rack or f"/{number}", []).append(number)  # no rack has a slash in its name

    def bounds(num: int, speed: float, t: float) -> tuple[float, float]:
        """Least and most that a place of `num` ranks may own, for it to exchange its bytes in t."""
        spare, c = t * speed - num, total - 2 * num
        if spare == math.inf or c == 0:
            return (0.0, 1.0) if spare >= 0 else (1.0, 0.0)
        return (max(spare / c, 0.0), 1.0) if c < 0 else (0.0, min(spare / c, 1.0))

    def nested(t: float) -> tuple[list[tuple[float, float]], list[tuple[float, float]], bool]:
        hosts = [bounds(num, speed, t) for num, speed in zip(ranks, speeds, strict=True)]
        places = []
        for name, inside in members.items():
            low, high = bounds(sum(ranks[number] for number in inside), racks.get(name, math.inf), t)
            low = max(low, sum(hosts[number][0] for number in inside))
            places.append((low, min(high, sum(hosts[number][1] for number in inside))))
        fits = all(low <= high for low, high in (*hosts, *places))
        return hosts, places, fits and sum(low for low, _ in places) <= 1 <= sum(high for _, high in places)

    low, high = 0.0, 1.0 / max(speed for speed in (*speeds, *racks.values()) if speed < math.inf)
    while not nested(high)[-1]:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if nested(middle)[-1] else (middle, high)
    hosts, places, _ = nested(high)
    shares = [0.0] * len(hosts)
    for share, inside in zip(_filled(places, 1.0), members.values(), strict=True):
        for number, part in zip(inside, _filled([hosts[number] for number in inside], share), strict=True):
            shares[number] = part
    return shares


def _filled(bounds: Sequence[tuple[float, float]], total: float) -> list[float]:
    """Shares between these bounds that sum to the total."""
    room = sum(high - low for low, high in bounds)
    filled = (total - sum(low for low, _ in bounds)) / room if room > 0 else 0.0
    return [low + filled * (high - low) for low, high in bounds]


def _flat_shares(ranks: Sequence[int], speeds: Sequence[float]) -> list[float]:
    """The least time t at which shares W exist with n + W·c ≤ t·bandwidth on every host, and such shares.

    c = N-2n is what a host of n ranks sends more if it owns all instead of nothing. Where it is positive, W is at most
    (t·bandwidth - n)/c. A host of more than half the ranks (there is one at most) sends *less* the more it owns, and
    needs that much at least.
    """
    extra = [sum(ranks) - 2 * n for n in ranks]
    t = max((n + min(c, 0)) / speed for n, c, speed in zip(ranks, extra, speeds, strict=True))
    if min(extra) > 0:  # no host owns more at no cost: raise t until every byte has an owner
        missing = 1 + sum(n / c for n, c in zip(ranks, extra, strict=True))
        t = max(t, missing / sum(speed / c for c, speed in zip(extra, speeds, strict=True)))
    least, most = [], []
    for n, c, speed in zip(ranks, extra, speeds, strict=True):
        spare = t * speed - n
        least.append(min(max(spare / c, 0.0), 1.0) if c < 0 else 0.0)
        most.append(min(max(spare / c, 0.0), 1.0) if c > 0 else 1.0)
    return _filled(list(zip(least, most, strict=True)), 1.0)


def _speed(link: Link | None) -> float:
    return min(link.up_bytes_per_s, link.down_bytes_per_s) if link is not None else math.inf


def all_reduce_latency_s(kind: str, cluster: Cluster) -> float:
    """Seconds of the rounds of an all-reduce of no bytes over all ranks."""
    return ranks_latency_s(kind, cluster.topology, flat_ring(cluster.topology))


def ranks_latency_s(kind: str, topology: Topology, ranks: Sequence[int]) -> float:
    """Likewise over these ranks; each round takes the largest latency of its messages."""
    if len(ranks) < _PAIR:
        return 0.0
    if kind in HIERARCHICAL:
        hosts = by_host(topology, ranks)
        inside_s = max(_ring_latency_s(topology, members) / 2 for members in hosts.values())
        heads = [members[0] for members in hosts.values()]
        across = ranks_latency_s("ring" if kind == "hierarchical" else "shards", topology, heads)
        return 2 * inside_s + across
    if kind == "ring":
        return _ring_latency_s(topology, ranks)
    return all_reduce_rounds(kind, len(ranks)) * topology.worst_latency_s(ranks)


def _ring_latency_s(topology: Topology, ranks: Sequence[int]) -> float:
    hops = zip(ranks, (*ranks[1:], ranks[0]), strict=True)
    return all_reduce_rounds("ring", len(ranks)) * max(topology.latency_s(a, b) for a, b in hops)
