"""The links of a cluster as a tree: device, host fabric, NIC, rack, root switch. Every edge is shared by all that crosses it.

A message climbs from its sender to the lowest place that it shares with its receiver, and descends. Within an island (such as
devices joined by NVLink) it takes the island's links; within a host the fabric; to another host the sender's NIC, the uplinks of
racks if they differ, and the receiver's NIC. A pair of hosts or devices may state a limit of its own, or a cable of its
own. Edges exist for stated links only: what no file states is free.

The latency of a path is the sum over levels of the larger latency of its two sides, so the `latency` of a host means what it
does with one switch: that between this host and any other, unless the other's is larger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

_KEPT = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A full-duplex link: of a host to the switch, of a device to its host, of a rack to the root."""

    up_bytes_per_s: float
    down_bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """What joins the devices of a host. Places are counted from 0 in each host."""

    device: Link | None = None
    """Of each device. None: not stated, free."""
    total_bytes_per_s: float | None = None
    """Of everything that passes the fabric, to and from NICs included, in both directions together. None: no such limit."""
    islands: tuple[tuple[int, ...], ...] = ()
    """Places of devices that are joined faster."""
    island: Link | None = None
    """Of each device to the others of its island; set if there are islands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rack:
    """Hosts behind one uplink."""

    name: str
    link: Link


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two hosts ("host0") or devices ("host0/1") whose path differs from what the tree says."""

    between: tuple[str, str]
    link: Link
    """"Up" is from the first to the second."""
    is_direct: bool = False
    """A cable of their own instead of the path through the tree; else a limit of this pair in addition to it."""
    latency_is_stated: bool = False
    """The link's latency is that of the whole path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wiring:
    """A host as a topology sees it."""

    name: str
    num_devices: int
    link: Link | None
    """All NICs together."""
    nic_of_device: tuple[int, ...] = ()
    """Empty: one NIC."""
    fabric: Fabric | None = None
    rack: str = ""

    @property
    def num_nics(self) -> int:
        return max(self.nic_of_device, default=0) + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """One direction of a link, or a limit that both directions share. Its number is its place in `Topology.edges`."""

    name: str
    level: str
    """"device", "island", "fabric", "nic", "rack" or "pair"."""
    bytes_per_s: float
    latency_s: float = 0.0


Way = tuple[int, int] | None
"""Numbers of the edges up and down, where a link is stated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a rank is in the tree, and the edges between it and the root."""

    host: int
    rack: str
    island: int
    """Number of the island over all hosts; -1: none."""
    device_way: Way
    island_way: Way
    fabric: int | None
    nic: int
    """Number of the NIC within the host."""
    nic_way: Way
    rack_way: Way


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """The edge of one direction of a pair."""

    edge: int
    is_direct: bool
    latency_s: float | None
    """Of the whole path; None: as of the tree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """Edges, the place of each rank, and the pairs that differ."""

    edges: tuple[Edge, ...]
    places: tuple[Place, ...]
    host_pairs: Mapping[tuple[int, int], Override]
    """By host of the sender and of the receiver."""
    rank_pairs: Mapping[tuple[int, int], Override]

    @property
    def host_of_rank(self) -> tuple[int, ...]:
        return tuple(place.host for place in self.places)

    @property
    def island_of_rank(self) -> tuple[int, ...]:
        """Number of each rank's island over all hosts; -1: in none."""
        return tuple(place.island for place in self.places)

    @property
    def is_one_switch(self) -> bool:
        """No more than a link per host to one switch."""
        return all(edge.level == "nic" for edge in self.edges) and all(place.nic == 0 for place in self.places)

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """Numbers of the edges that a message crosses, in order."""
        override = self.override(source, target)
        if override is None:
            return self.tree_path(source, target)
        return (override.edge,) if override.is_direct else (*self.tree_path(source, target), override.edge)

    def override(self, source: int, target: int) -> Override | None:
        """What a pair of devices, else one of hosts, states."""
        if not self.host_pairs and not self.rank_pairs:
            return None
        found = self.rank_pairs.get((source, target))
        return found or self.host_pairs.get((self.places[source].host, self.places[target].host))

    def tree_path(self, source: int, target: int) -> tuple[int, ...]:
        """The path without what pairs state."""
        a, b = self.places[source], self.places[target]
        if source == target:
            return ()
        if a.host == b.host:
            if a.island == b.island >= 0:
                return _ways((a.island_way, 0), (b.island_way, 1))
            inside = _ways((a.device_way, 0), (b.device_way, 1))
            return inside if a.fabric is None else (*inside, a.fabric)
        climb: list[tuple[Way, int]] = [(a.device_way, 0), (a.nic_way, 0)]
        descend: list[tuple[Way, int]] = [(b.nic_way, 1), (b.device_way, 1)]
        if a.rack != b.rack:
            climb, descend = [*climb, (a.rack_way, 0)], [(b.rack_way, 1), *descend]
        return (*_ways(*climb, *descend), *(place.fabric for place in (a, b) if place.fabric is not None))

    def latency_s(self, source: int, target: int) -> float:
        """Of a message: per level the larger of both sides, summed; or what the pair states."""
        override = self.override(source, target)
        if override is not None and override.latency_s is not None:
            return override.latency_s
        found: dict[str, float] = {}
        for number in self.path(source, target):
            edge = self.edges[number]
            found[edge.level] = max(found.get(edge.level, 0.0), edge.latency_s)
        return sum(found.values())

    def worst_latency_s(self, ranks: Iterable[int]) -> float:
        """The largest between any two of these ranks."""
        members = set(ranks)
        first_of_host = {self.places[rank].host: rank for rank in sorted(members, reverse=True)}
        chosen = set(self._examples(sorted(members)))
        chosen |= {rank for pair in self.rank_pairs for rank in pair if rank in members}
        chosen |= {first_of_host[host] for pair in self.host_pairs for host in pair if host in first_of_host}
        return max((self.latency_s(a, b) for a in chosen for b in chosen if a != b), default=0.0)

    def _examples(self, ranks: Iterable[int]) -> Iterator[int]:
        """Of ranks whose edges have equal latencies, at most two per place of each level: all pairs of others are like theirs."""
        seen: dict[tuple[object, ...], list[object]] = {}
        for rank in ranks:
            place = self.places[rank]
            ways = (place.device_way, place.island_way, place.nic_way, place.rack_way)
            parent: tuple[object, ...] = tuple(way and self.edges[way[0]].latency_s for way in ways)
            for child in (place.rack, place.host, place.island, rank):
                children = seen.setdefault(parent, [])
                if child not in children:
                    if len(children) == 2:
                        break
                    children.append(child)
                parent = (*parent, child)
            else:
                yield rank

    def message_s(self, source: int, target: int, num_bytes: float) -> float:
        """Seconds of a message alone on all links: the tightest edge, and the latency."""
        busy_s = (num_bytes / self.edges[number].bytes_per_s for number in self.path(source, target))
        return max(busy_s, default=0.0) + self.latency_s(source, target)

    def busy_s(self, loads: Mapping[int, float]) -> float:
        """Seconds that the busiest edge needs for these bytes."""
        return max((num_bytes / self.edges[number].bytes_per_s for number, num_bytes in loads.items()), default=0.0)


def ring_order(topology: Topology, ranks: Iterable[int]) -> tuple[int, ...]:
    """The ranks in an order in which a ring enters and leaves every rack, host and island once, which is the least possible.

    Racks, hosts and islands come in the order of their first rank; so does each rank within its place.
    """
    listed = list(ranks)
    nested = {rank: tuple(accumulate(_groups(topology.places[rank]), initial=())) for rank in listed}
    first: dict[tuple[object, ...], int] = {}
    for number, rank in enumerate(listed):
        for group in nested[rank]:
            first.setdefault(group, number)
    return tuple(sorted(listed, key=lambda rank: [first[group] for group in nested[rank]]))


def flat_ring(topology: Topology) -> tuple[int, ...]:
    """All ranks, as a ring over all of them goes."""
    return ring_order(topology, range(len(topology.places)))


def _groups(place: Place) -> Iterator[tuple[object, ...]]:
    """From the largest: rack (a host outside of racks is a place of its own at the root), host, NIC, island."""
    yield (place.rack or f"host {place.host}",)
    yield (place.host,)
    yield (place.nic,)
    yield (place.island,)


@lru_cache(maxsize=_KEPT)
def make_topology(hosts: tuple[Wiring, ...], racks: tuple[Rack, ...], pairs: tuple[Pair, ...]) -> Topology:
    """The tree of hosts, in the order of their ranks. Edges are numbered NICs first, then racks, then within hosts, then pairs."""
    made = _Edges()
    joined = len(hosts) > 1
    nics = [made.nics(host) if joined and host.link is not None else [None] * host.num_nics for host in hosts]
    ways = {rack.name: made.way(f"rack {rack.name}", "rack", rack.link) for rack in racks} if joined else {}
    places: list[Place] = []
    for number, host in enumerate(hosts):
        places += made.places(host, number, nics[number], ways.get(host.rack))
    host_pairs, rank_pairs = _pairs(made, hosts, pairs)
    return Topology(edges=tuple(made.edges), places=tuple(places), host_pairs=host_pairs, rank_pairs=rank_pairs)


class _Edges:
    """Numbers edges while a tree is built."""

    def __init__(self) -> None:
        self.edges: list[Edge] = []
        self._num_islands = 0

    def nics(self, host: Wiring) -> list[Way]:
        assert host.link is not None
        link, count = host.link, host.num_nics
        each = Link(
            up_bytes_per_s=link.up_bytes_per_s / count,
            down_bytes_per_s=link.down_bytes_per_s / count,
            latency_s=link.latency_s,
        )
        names = [host.name if count == 1 else f"{host.name} NIC {number}" for number in range(count)]
        return [self.way(name, "nic", each) for name in names]

    def places(self, host: Wiring, number: int, nics: Sequence[Way], rack_way: Way) -> list[Place]:
        fabric = host.fabric or Fabric()
        total = None
        if fabric.total_bytes_per_s is not None:
            total = self.edge(f"{host.name} fabric", "fabric", fabric.total_bytes_per_s, 0.0)
        islands = {place: index for index, members in enumerate(fabric.islands) for place in members}
        found = []
        for place in range(host.num_devices):
            name, island = f"{host.name}/{place}", islands.get(place, -1)
            nic = host.nic_of_device[place] if host.nic_of_device else 0
            found.append(
                Place(
                    host=number,
                    rack=host.rack,
                    island=self._num_islands + island if island >= 0 else -1,
                    device_way=self.way(name, "device", fabric.device),
                    island_way=self.way(f"{name} in its island", "island", fabric.island) if island >= 0 else None,
                    fabric=total,
                    nic=nic,
                    nic_way=nics[nic],
                    rack_way=rack_way,
                )
            )
        self._num_islands += len(fabric.islands)
        return found

    def way(self, name: str, level: str, link: Link | None) -> Way:
        if link is None:
            return None
        up = self.edge(f"{name} up", level, link.up_bytes_per_s, link.latency_s)
        return up, self.edge(f"{name} down", level, link.down_bytes_per_s, link.latency_s)

    def edge(self, name: str, level: str, bytes_per_s: float, latency_s: float) -> int:
        self.edges.append(Edge(name=name, level=level, bytes_per_s=bytes_per_s, latency_s=latency_s))
        return len(self.edges) - 1


def _pairs(
    made: _Edges, hosts: Sequence[Wiring], pairs: Iterable[Pair]
) -> tuple[dict[tuple[int, int], Override], dict[tuple[int, int], Override]]:
    """By numbers of hosts, and by ranks."""
    number_of = {host.name: number for number, host in enumerate(hosts)}
    first_rank = {host.name: sum(other.num_devices for other in hosts[:at]) for at, host in enumerate(hosts)}
    of_hosts: dict[tuple[int, int], Override] = {}
    of_ranks: dict[tuple[int, int], Override] = {}
    for pair in pairs:
        a, b = pair.between
        are_hosts = a in number_of and b in number_of
        found, (source, target) = (
            (of_hosts, (number_of[a], number_of[b]))
            if are_hosts
            else (of_ranks, tuple(first_rank[name] + place for name, place in map(split_device, (a, b))))
        )
        latency_s = pair.link.latency_s if pair.latency_is_stated else None
        for ends, arrow, speed in (
            ((source, target), f"{a} to {b}", pair.link.up_bytes_per_s),
            ((target, source), f"{b} to {a}", pair.link.down_bytes_per_s),
        ):
            edge = made.edge(arrow, "pair", speed, 0.0)
            found[ends] = Override(edge=edge, is_direct=pair.is_direct, latency_s=latency_s)
    return of_hosts, of_ranks


def split_device(text: str) -> tuple[str, int]:
    """ "host0/1" -> ("host0", 1); ("", -1) where it is no such text."""
    name, _, place = text.rpartition("/")
    return (name, int(place)) if name and place.isdigit() else ("", -1)


def is_end(text: str, num_devices: Mapping[str, int]) -> bool:
    """Whether a text names a host, or a device of one."""
    name, place = split_device(text)
    return text in num_devices or 0 <= place < num_devices.get(name, 0)


def _ways(*ways: tuple[Way, int]) -> tuple[int, ...]:
    """The edges of a path: of each way the one of that direction, where it is stated."""
    return tuple(way[side] for way, side in ways if way is not None)
