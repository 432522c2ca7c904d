"""The tables of a cluster file that state links: uplinks of hosts, NICs, fabrics, racks, pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from autotune.workloads.errors import SpecError, unknown_name
from autotune.workloads.quantity import BYTES_PER_S, SECONDS, parse_quantity
from autotune.workloads.serial import known_keys
from autotune.workloads.topology import Fabric, Link, Pair, Rack, is_end

_TWO = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Wires:
    """Fabrics, racks and pairs of a file, which its hosts refer to by name."""

    fabrics: Mapping[str, tuple[Fabric, int]]
    """With the size of islands where these are not listed, else 0."""
    racks: Mapping[str, Rack]
    pair_tables: Sequence[tuple[str, dict[str, Any]]]

    @classmethod
    def read(cls, data: dict[str, Any], where: str) -> Self:
        tables = {kind: data.get(kind, {}) for kind in ("fabric", "rack")}
        if not all(isinstance(table, dict) for table in tables.values()) or not isinstance(data.get("pair", []), list):
            raise SpecError(f"{where}: fabrics are tables [fabric.NAME], racks [rack.NAME], and pairs are [[pair]]")
        return cls(
            fabrics={name: _fabric(table, f"{where} [fabric.{name}]") for name, table in tables["fabric"].items()},
            racks={name: _rack(name, table, f"{where} [rack.{name}]") for name, table in tables["rack"].items()},
            pair_tables=[(f"{where} [[pair]] {index}", table) for index, table in enumerate(data.get("pair", []))],
        )

    def host_link(self, table: dict[str, Any], num_nics: int, where: str) -> Link | None:
        """All NICs of a host together: the file states one."""
        link = _link(table, where)
        if link is None and "nics" in table:
            raise SpecError(
                f"{where} states nics but no uplink and downlink: state those of one NIC, or leave nics out"
            )
        if link is None or num_nics == 1:
            return link
        return Link(
            up_bytes_per_s=link.up_bytes_per_s * num_nics,
            down_bytes_per_s=link.down_bytes_per_s * num_nics,
            latency_s=link.latency_s,
        )

    def nics(self, table: dict[str, Any], num_devices: int, where: str) -> tuple[int, ...]:
        """The NIC of each device: as listed, or in equal runs; empty for one."""
        given = table.get("nics", 1)
        if isinstance(given, list):
            if len(given) != num_devices or sorted(set(map(str, given))) != sorted(map(str, range(len(set(given))))):
                raise SpecError(
                    f"{where} nics is {given!r}: it must be the NIC of each of the {num_devices} devices, numbered from 0, "
                    "or how many NICs there are"
                )
            return tuple(given) if max(given) else ()
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= num_devices:
            raise SpecError(
                f"{where} nics is {given!r}: it must be a number from 1 to {num_devices}, for a device uses one NIC; state "
                f"nics = {num_devices} with the bandwidth that each device has"
            )
        return tuple(place * given // num_devices for place in range(num_devices)) if given > 1 else ()

    def fabric_of(self, table: dict[str, Any], num_devices: int, where: str) -> Fabric | None:
        """The fabric that a host names, its islands laid over the devices of this host."""
        name = table.get("fabric")
        if name is None:
            return None
        if name not in self.fabrics:
            raise unknown_name(f"fabric in {where}:", str(name), self.fabrics)
        fabric, size = self.fabrics[name]
        islands = fabric.islands
        if size:
            islands = tuple(tuple(range(at, min(at + size, num_devices))) for at in range(0, num_devices, size))
        if any(not 0 <= place < num_devices for island in islands for place in island):
            raise SpecError(
                f"{where} has {num_devices} devices, numbered from 0, but the islands of its fabric {name!r} are "
                f"{[list(island) for island in islands]}: name devices that it has, or state island_size"
            )
        return Fabric(
            device=fabric.device, total_bytes_per_s=fabric.total_bytes_per_s, islands=islands, island=fabric.island
        )

    def rack_of(self, table: dict[str, Any], where: str) -> str:
        name = table.get("rack", "")
        if name and name not in self.racks:
            raise unknown_name(f"rack in {where}:", str(name), self.racks)
        return str(name)

    def pairs(self, num_devices: Mapping[str, int]) -> tuple[Pair, ...]:
        """The pairs of a file with these hosts."""
        return tuple(_pair(table, num_devices, where) for where, table in self.pair_tables)


def _link(table: dict[str, Any], where: str) -> Link | None:
    """From uplink, downlink and latency; None where there are none."""
    if ("uplink" in table) != ("downlink" in table):
        raise SpecError(f"{where} states only one of uplink and downlink: state both, or neither")
    if "latency" in table and "uplink" not in table:
        raise SpecError(f"{where} states a latency but no uplink and downlink: state them, or leave the latency out")
    if "uplink" not in table:
        return None
    return Link(
        up_bytes_per_s=parse_quantity(table["uplink"], BYTES_PER_S, f"{where} uplink"),
        down_bytes_per_s=parse_quantity(table["downlink"], BYTES_PER_S, f"{where} downlink"),
        latency_s=parse_quantity(table["latency"], SECONDS, f"{where} latency") if "latency" in table else 0.0,
    )


def _both_ways(table: dict[str, Any], key: str, latency: str, where: str) -> Link | None:
    """A link that is as fast in both directions."""
    if key not in table:
        if latency in table:
            raise SpecError(f"{where} states {latency} but not {key}: state both, or leave {latency} out")
        return None
    speed = parse_quantity(table[key], BYTES_PER_S, f"{where} {key}")
    latency_s = parse_quantity(table[latency], SECONDS, f"{where} {latency}") if latency in table else 0.0
    return Link(up_bytes_per_s=speed, down_bytes_per_s=speed, latency_s=latency_s)


def _fabric(table: dict[str, Any], where: str) -> tuple[Fabric, int]:
    known_keys(
        table, ("bandwidth", "latency", "total", "islands", "island_size", "island_bandwidth", "island_latency"), where
    )
    islands, size = table.get("islands", []), table.get("island_size", 0)
    listed = [place for island in islands for place in island] if _are_lists(islands) else None
    if listed is None or any(isinstance(one, bool) or not isinstance(one, int) for one in listed):
        raise SpecError(
            f"{where} islands is {islands!r}: it must be lists of devices of a host, such as [[0, 1], [2, 3]]"
        )
    if len(set(listed)) < len(listed):
        raise SpecError(f"{where} islands is {islands!r}: a device is in one island only")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0 or size == 1 or (size and islands):
        raise SpecError(
            f"{where} island_size is {size!r}: it must be a number from 2, and only where islands are not listed"
        )
    island = _both_ways(table, "island_bandwidth", "island_latency", where)
    if (island is not None) != bool(islands or size):
        raise SpecError(
            f"{where} states {'island_bandwidth without islands' if island else 'islands without island_bandwidth'}: "
            "state island_bandwidth beside islands or island_size"
        )
    total = parse_quantity(table["total"], BYTES_PER_S, f"{where} total") if "total" in table else None
    fabric = Fabric(
        device=_both_ways(table, "bandwidth", "latency", where),
        total_bytes_per_s=total,
        islands=tuple(tuple(island) for island in islands),
        island=island,
    )
    return fabric, size


def _are_lists(islands: Any) -> bool:
    return isinstance(islands, list) and all(isinstance(island, list) and island for island in islands)


def _rack(name: str, table: dict[str, Any], where: str) -> Rack:
    known_keys(table, ("uplink", "downlink", "latency"), where)
    link = _link(table, where)
    if link is None:
        raise SpecError(f"{where} states no uplink and downlink: state what its hosts share, or leave the rack out")
    return Rack(name=name, link=link)


def _pair(table: dict[str, Any], num_devices: Mapping[str, int], where: str) -> Pair:
    known_keys(table, ("between", "bandwidth", "latency", "direct"), where)
    between = table.get("between")
    if not isinstance(between, list) or len(between) != _TWO or not all(isinstance(end, str) for end in between):
        raise SpecError(f'{where} between is {between!r}: it must be two hosts, or two devices such as "host0/1"')
    for end in between:
        if not is_end(end, num_devices):
            raise unknown_name(f"host or device in {where}:", end, tuple(_ends(num_devices)))
    are_hosts = {end in num_devices for end in between}
    if between[0] == between[1] or len(are_hosts) > 1:
        raise SpecError(f"{where} between is {between!r}: it must be two different hosts, or two different devices")
    link = _both_ways(table, "bandwidth", "latency", where)
    if link is None:
        raise SpecError(f'{where} states no bandwidth: state it, such as bandwidth = "1 Gbit/s"')
    if not isinstance(table.get("direct", False), bool):
        raise SpecError(f"{where} direct is {table['direct']!r}: it must be true (a cable of their own) or false")
    return Pair(
        between=(between[0], between[1]),
        link=link,
        is_direct=table.get("direct", False),
        latency_is_stated="latency" in table,
    )


def _ends(num_devices: Mapping[str, int]) -> Iterator[str]:
    yield from num_devices
    yield from (f"{name}/{place}" for name, count in num_devices.items() for place in range(count))
