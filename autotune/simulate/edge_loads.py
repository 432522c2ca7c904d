"""The bytes that a transfer puts on each edge of a topology: messages, rings, owner shards, gathers, hierarchical all-reduces.

Every sum over ranks is a set of messages, and each message loads the edges of its path. Rings are added up hop by hop.
Exchanges in which each rank sends s_a · t_b bytes to each other rank are added up place by place, not message by
message: what leaves a place is the sum of s inside times the sum of t outside.

A **hierarchical** all-reduce has three phases. The ranks of a host reduce-scatter: each of its n ranks gets the sum of a shard. The
holders of each shard sum it across hosts, by a ring or by owner shards of hosts. The ranks of a host all-gather. So n
times fewer bytes cross each NIC than the host's ranks hold together. Where hosts have unlike numbers of ranks, shards are cut at
the bounds of all of them, and one rank holds several neighbouring pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

from autotune.workloads.topology import Override, Topology, Way, ring_order

EdgeLoads = dict[int, float]
"""Bytes by number of the edge."""
_ROOT = ("root",)


def hop_bytes(topology: Topology, source: int, target: int, num_bytes: float) -> EdgeLoads:
    """Of a message."""
    return _added(topology, [(source, target, num_bytes)])


def ring_bytes(topology: Topology, ranks: Sequence[int], num_bytes: float, *, rounds: int = 2) -> EdgeLoads:
    """Of a ring over these ranks in this order. `rounds`: 2 for an all-reduce, 1 for a reduce-scatter or an all-gather."""
    size = len(ranks)
    per_hop = rounds * (size - 1) / size * num_bytes
    return _added(topology, [(rank, ranks[(at + 1) % size], per_hop) for at, rank in enumerate(ranks)])


def shard_bytes(topology: Topology, ranks: Sequence[int], shares: Sequence[float], num_bytes: float) -> EdgeLoads:
    """Of owner shards: each rank sends each owner its slice, and each owner sends each rank the sum."""
    owned, one = [share * num_bytes for share in shares], [1.0] * len(ranks)
    return merged([exchange_bytes(topology, ranks, one, owned), exchange_bytes(topology, ranks, owned, one)])


def gather_bytes(topology: Topology, ranks: Sequence[int], bytes_of_rank: Sequence[float]) -> EdgeLoads:
    """Of an all-gather: each rank sends what it has to each other rank."""
    return exchange_bytes(topology, ranks, bytes_of_rank, [1.0] * len(ranks))


def exchange_bytes(
    topology: Topology, ranks: Sequence[int], sends: Sequence[float], takes: Sequence[float]
) -> EdgeLoads:
    """Each rank a sends sends[a] · takes[b] bytes to each other rank b."""
    members = [(topology.places[rank], sent, taken) for rank, sent, taken in zip(ranks, sends, takes, strict=True)]
    sums: dict[tuple[object, ...], tuple[float, float]] = {}
    for place, sent, taken in members:
        for key in (_ROOT, ("rack", place.rack), ("host", place.host), ("island", place.island)):
            before = sums.get(key, (0.0, 0.0))
            sums[key] = (before[0] + sent, before[1] + taken)
    loads: EdgeLoads = {}

    def put(way: Way, own: tuple[float, float], inside: tuple[float, float], outside: tuple[float, float]) -> None:
        """What the rank exchanges with the ranks of `inside` that are not of `outside`."""
        if way is not None:
            _add(loads, way[0], own[0] * (inside[1] - outside[1]))
            _add(loads, way[1], own[1] * (inside[0] - outside[0]))

    for place, *both in members:
        own = (both[0], both[1])
        root, rack, host = sums[_ROOT], sums["rack", place.rack], sums["host", place.host]
        island = sums["island", place.island] if place.island >= 0 else own
        put(place.island_way, own, island, own)
        put(place.device_way, own, root, island)
        put(place.nic_way, own, root, host)
        put(place.rack_way, own, root, rack)
        if place.fabric is not None:
            _add(loads, place.fabric, own[0] * (root[1] - island[1]) + own[1] * (root[0] - host[0]))
    for (source, target), override in _overrides(topology, ranks).items():
        num_bytes = sends[ranks.index(source)] * takes[ranks.index(target)]
        _add(loads, override.edge, num_bytes)
        if override.is_direct:
            for number in topology.tree_path(source, target):
                _add(loads, number, -num_bytes)
    return {number: num_bytes for number, num_bytes in loads.items() if num_bytes > 0}


def hierarchical_bytes(
    topology: Topology, ranks: Sequence[int], num_bytes: float, shares: Mapping[int, float] | None = None
) -> list[EdgeLoads]:
    """Of each phase of a hierarchical all-reduce. `shares`: what each host owns across hosts; None: a ring."""
    hosts = by_host(topology, ranks)
    inside = merged([ring_bytes(topology, members, num_bytes, rounds=1) for members in hosts.values()])
    across = []
    for holders, share in pieces(list(hosts.values())):
        if shares is None:
            across.append(ring_bytes(topology, holders, share * num_bytes))
        else:
            across.append(shard_bytes(topology, holders, [shares[host] for host in hosts], share * num_bytes))
    return [inside, merged(across), inside]


def by_host(topology: Topology, ranks: Sequence[int]) -> dict[int, list[int]]:
    """The ranks of each host, in ring order."""
    found: dict[int, list[int]] = {}
    for rank in ring_order(topology, ranks):
        found.setdefault(topology.places[rank].host, []).append(rank)
    return found


def pieces(hosts: Sequence[Sequence[int]]) -> list[tuple[list[int], float]]:
    """The holder of each piece on each host, and its share."""
    return [(holders, float(end - start)) for holders, start, end in bounded_pieces(hosts)]


def bounded_pieces(hosts: Sequence[Sequence[int]]) -> list[tuple[list[int], Fraction, Fraction]]:
    """The holder of each piece on each host, and its bounds: the shards of all hosts, cut at each other's bounds."""
    sizes = {len(members) for members in hosts}
    bounds = sorted({Fraction(shard, size) for size in sizes for shard in range(size + 1)})
    return [([members[int(start * len(members))] for members in hosts], start, end) for start, end in pairwise(bounds)]


def merged(several: Iterable[EdgeLoads]) -> EdgeLoads:
    """The bytes of several transfers together."""
    total: EdgeLoads = {}
    for loads in several:
        for number, num_bytes in loads.items():
            _add(total, number, num_bytes)
    return total


def _added(topology: Topology, hops: Iterable[tuple[int, int, float]]) -> EdgeLoads:
    """Of messages: source, target and bytes."""
    total: EdgeLoads = {}
    for source, target, num_bytes in hops:
        for number in topology.path(source, target):
            _add(total, number, num_bytes)
    return total


def _add(loads: EdgeLoads, number: int, num_bytes: float) -> None:
    loads[number] = loads.get(number, 0.0) + num_bytes


def _overrides(topology: Topology, ranks: Sequence[int]) -> dict[tuple[int, int], Override]:
    """By pairs of these ranks."""
    if not topology.host_pairs and not topology.rank_pairs:
        return {}
    hosts = by_host(topology, ranks)
    found = {
        (source, target): override
        for (a, b), override in topology.host_pairs.items()
        for source in hosts.get(a, ())
        for target in hosts.get(b, ())
    }
    members = set(ranks)
    return found | {pair: override for pair, override in topology.rank_pairs.items() if members.issuperset(pair)}
