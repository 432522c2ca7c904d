"""A cluster as text: as the file that states it, and as a tree of labels. Hosts that differ only by name are shown once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from autotune.workloads.cluster import Cluster, Device, Host
from autotune.workloads.quantity import (
    BYTES,
    BYTES_PER_S,
    FLOPS_PER_S,
    SECONDS,
    WATTS,
    format_bandwidth,
    format_bytes,
    parse_quantity,
)
from autotune.workloads.topology import Fabric, Link, Pair, Rack


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """A place of the tree and what is below it."""

    label: str
    below: tuple[Branch, ...] = ()


def cluster_tree(cluster: Cluster) -> Branch:
    """The links of a cluster: racks, hosts, fabrics, islands, devices with their ranks, pairs."""
    first = 0
    in_rack: dict[str, list[tuple[Host, int]]] = {}
    for host in cluster.hosts:
        in_rack.setdefault(host.rack, []).append((host, first))
        first += len(host.devices)
    links = {rack.name: rack.link for rack in cluster.racks}
    below: list[Branch] = []
    for name, hosts in in_rack.items():
        branches = tuple(_host_branches(hosts))
        below += [Branch(label=f"rack {name}: {_link_text(links[name])}", below=branches)] if name else branches
    below += [Branch(label=_pair_text(pair)) for pair in cluster.pairs]
    return Branch(
        label=f"{cluster.name}: {len(cluster.devices)} devices in {len(cluster.hosts)} hosts", below=tuple(below)
    )


def _host_branches(hosts: Sequence[tuple[Host, int]]) -> Iterator[Branch]:
    for _, group in groupby(hosts, key=lambda one: replace(one[0], name="")):
        alike = list(group)
        (host, start), (last, end) = alike[0], alike[-1]
        name = host.name if len(alike) == 1 else f"{len(alike)} hosts {host.name} to {last.name}"
        wired = "link not stated" if host.link is None else _nics_text(host)
        ranks = "" if len(alike) == 1 else f", ranks {start} to {end + len(last.devices) - 1}"
        yield Branch(label=f"{name}: {wired}{ranks}", below=tuple(_inside(host, start, single=len(alike) == 1)))


def _nics_text(host: Host) -> str:
    assert host.link is not None
    count = max(host.nic_of_device, default=0) + 1
    each = replace(
        host.link,
        up_bytes_per_s=host.link.up_bytes_per_s / count,
        down_bytes_per_s=host.link.down_bytes_per_s / count,
    )
    return _link_text(each) if count == 1 else f"{count} NICs, each {_link_text(each)}"


def _inside(host: Host, start: int, *, single: bool) -> Iterator[Branch]:
    """Islands and other devices, below what they share."""
    fabric = host.fabric or Fabric()
    island_of = {place: number for number, island in enumerate(fabric.islands) for place in island}
    devices: list[Branch] = []
    places = sorted(range(len(host.devices)), key=lambda place: (island_of.get(place, len(fabric.islands)), place))
    for number, group in groupby(places, key=island_of.get):
        listed = tuple(_device_branches(host, list(group), start if single else None))
        if number is None or fabric.island is None:
            devices += listed
        else:
            devices.append(Branch(label=f"island: {_link_text(fabric.island)} each", below=listed))
    parts = [f"{_link_text(fabric.device)} each"] if fabric.device is not None else []
    if fabric.total_bytes_per_s is not None:
        parts.append(f"{format_bandwidth(fabric.total_bytes_per_s)} in all")
    if parts:
        yield Branch(label=f"fabric: {', '.join(parts)}", below=tuple(devices))
    else:
        yield from devices


def _device_branches(host: Host, places: Sequence[int], start: int | None) -> Iterator[Branch]:
    for device, group in groupby(places, key=lambda place: host.devices[place]):
        at = list(group)
        label = f"{len(at)} x {device.name}" if len(at) > 1 else device.name
        label += f", {format_bytes(device.memory_bytes)}" if device.memory_bytes else ""
        if start is not None:
            label += (
                f", rank {start + at[0]}" if len(at) == 1 else f", ranks {', '.join(str(start + one) for one in at)}"
            )
        yield Branch(label=label)


def _link_text(link: Link) -> str:
    up, down = format_bandwidth(link.up_bytes_per_s), format_bandwidth(link.down_bytes_per_s)
    speed = up if up == down else f"{up} up, {down} down"
    return speed + (f", {link.latency_s * 1e6:.4g} us" if link.latency_s else "")


def _pair_text(pair: Pair) -> str:
    how = "directly" if pair.is_direct else "at most"
    return f"{pair.between[0]} to {pair.between[1]}: {how} {_link_text(pair.link)}"


def cluster_toml(cluster: Cluster, notes: Sequence[str] = ()) -> str:
    """A file that states this cluster. `notes`: comments at its beginning."""
    kinds = {device.name: device for device in cluster.devices}
    fabrics: dict[Fabric, str] = {}
    for host in cluster.hosts:
        if host.fabric is not None:
            fabrics.setdefault(host.fabric, f"fabric{len(fabrics)}")
    top = {"name": cluster.name, "description": cluster.description, "emulation": cluster.emulation}
    tables = [
        *(f"# {note}" for note in notes),
        "\n".join(f"{key} = {_quoted(value)}" for key, value in top.items() if value),
        *(_table(f"[device.{_key(name)}]", _device_keys(device)) for name, device in kinds.items()),
        *(_table(f"[fabric.{name}]", _fabric_keys(fabric)) for fabric, name in fabrics.items()),
        *(_table(f"[rack.{_key(rack.name)}]", _rack_keys(rack)) for rack in cluster.racks),
        *(_table("[[host]]", _host_keys(host, fabrics)) for host in cluster.hosts),
        *(_table("[[pair]]", _pair_keys(pair)) for pair in cluster.pairs),
    ]
    return "\n\n".join(tables) + "\n"


Keys = Iterator[tuple[str, str]]


def _device_keys(device: Device) -> Keys:
    for key, value, units in (
        ("flops", device.flops_per_s, FLOPS_PER_S),
        ("memory_bandwidth", device.memory_bytes_per_s, BYTES_PER_S),
        ("launch", device.launch_s or None, SECONDS),
        ("memory", device.memory_bytes, BYTES),
        ("reserved", device.reserved_bytes or None, BYTES),
        ("busy_power", device.busy_watts, WATTS),
        ("idle_power", device.idle_watts, WATTS),
    ):
        if value is not None:
            yield key, _quantity(value, units)
    if device.price_per_hour is not None:
        yield "price_per_hour", repr(device.price_per_hour)


def _fabric_keys(fabric: Fabric) -> Keys:
    for key, latency, link in (
        ("bandwidth", "latency", fabric.device),
        ("island_bandwidth", "island_latency", fabric.island if fabric.islands else None),
    ):
        if link is not None:
            yield key, _quantity(link.up_bytes_per_s, BYTES_PER_S)
            if link.latency_s:
                yield latency, _quantity(link.latency_s, SECONDS)
    if fabric.total_bytes_per_s is not None:
        yield "total", _quantity(fabric.total_bytes_per_s, BYTES_PER_S)
    if fabric.islands:
        yield "islands", repr([list(island) for island in fabric.islands])


def _rack_keys(rack: Rack) -> Keys:
    yield from _link_keys(rack.link, 1)


def _host_keys(host: Host, fabrics: Mapping[Fabric, str]) -> Keys:
    yield "name", _quoted(host.name)
    yield "devices", "[" + ", ".join(_quoted(text) for text in _device_names(host)) + "]"
    if host.link is not None:
        yield from _link_keys(host.link, max(host.nic_of_device, default=0) + 1)
    if host.nic_of_device:
        yield "nics", repr(list(host.nic_of_device))
    if host.fabric is not None:
        yield "fabric", _quoted(fabrics[host.fabric])
    if host.rack:
        yield "rack", _quoted(host.rack)
    if host.cpus is not None:
        yield "cpus", repr(host.cpus)


def _device_names(host: Host) -> Iterator[str]:
    for name, group in groupby(device.name for device in host.devices):
        count = len(list(group))
        yield name if count == 1 else f"{count} x {name}"


def _link_keys(link: Link, num_nics: int) -> Keys:
    yield "uplink", _quantity(link.up_bytes_per_s / num_nics, BYTES_PER_S)
    yield "downlink", _quantity(link.down_bytes_per_s / num_nics, BYTES_PER_S)
    if link.latency_s:
        yield "latency", _quantity(link.latency_s, SECONDS)


def _pair_keys(pair: Pair) -> Keys:
    yield "between", "[" + ", ".join(map(_quoted, pair.between)) + "]"
    yield "bandwidth", _quantity(min(pair.link.up_bytes_per_s, pair.link.down_bytes_per_s), BYTES_PER_S)
    if pair.latency_is_stated:
        yield "latency", _quantity(pair.link.latency_s, SECONDS)
    if pair.is_direct:
        yield "direct", "true"


def _table(head: str, keys: Keys) -> str:
    return "\n".join([head, *(f"{key} = {value}" for key, value in keys)])


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _quantity(value: float, units: Mapping[str, float]) -> str:
    """In the unit that is shortest to write, among those in which it is exact."""
    written = (f"{value / factor!r} {unit}".replace(".0 ", " ") for unit, factor in units.items())
    exact = [text for text in written if "e" not in text.split()[0] and parse_quantity(text, units, "") == value]
    return _quoted(min(exact, key=len, default=f"{value!r} {_base(units)}"))


def _base(units: Mapping[str, float]) -> str:
    return next(unit for unit, factor in units.items() if factor == 1.0)
