"""A cluster: hosts with their devices, and the links between them; one rank per device.

In the short form each host is connected to one switch by an uplink and a downlink. A host may state several NICs, the fabric that
joins its devices, and the rack that it is in; all of it together is `Cluster.topology` (`autotune.workloads.topology`).
Ranks are numbered over the hosts' devices in file order. A cluster is *emulated* when its file states device speeds and
`emulation = "paced"`; with `emulation = "none"` the devices are those that the ranks run on.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.workloads.errors import SpecError, unknown_name
from autotune.workloads.files import PATH_NAME_RULE, is_path_name, shown
from autotune.workloads.quantity import BYTES, BYTES_PER_S, FLOPS_PER_S, SECONDS, WATTS, parse_quantity
from autotune.workloads.serial import digest, known_keys, load_table, table_names, to_data
from autotune.workloads.topology import Fabric, Link, Pair, Rack, Topology, Wiring, make_topology
from autotune.workloads.wires import Wires

__all__ = [
    "CLUSTER_FOLDER",
    "Cluster",
    "Device",
    "Host",
    "Link",
    "cluster_names",
    "load_cluster",
    "parse_cluster",
    "stated_name",
]

CLUSTER_FOLDER = Path(__file__).parent / "clusters"
EMULATIONS = ("none", "paced")
_PART = re.compile(r"(?P<name>.+)-(?:x|first)(?P<num_ranks>[1-9]\d*)")
"""Names that `for_ranks` gives to parts of a cluster."""
_MOST_DEVICES = 65_536
_SEVERAL = re.compile(r"(?P<count>[1-9]\d{0,8}) x (?P<kind>.+)")
"""Several devices of a kind in a host: "8 x fast"."""
_NOT_IN_FINGERPRINT_IF_EMPTY = {
    "cluster": ("racks", "pairs"),
    "host": ("nic_of_device", "fabric", "rack"),
    "device": ("reserved_bytes",),
}
"""They came later, and a cluster that does not state them is the one that it was before them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A device. Speeds are stated for an emulated device and None for a real one."""

    name: str
    flops_per_s: float | None = None
    memory_bytes_per_s: float | None = None
    launch_s: float = 0.0
    """Fixed cost of starting one op."""
    memory_bytes: float | None = None
    """Limit on parameters, gradients, optimizer state, buffers, saved activations. None: no limit."""
    reserved_bytes: float = 0.0
    """Of the memory: what the driver, its context and libraries hold on every rank, whatever the plan."""
    price_per_hour: float | None = None
    """In any currency; predicted costs use the same."""
    busy_watts: float | None = None
    idle_watts: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A machine: its devices, and its link (None: the real network)."""

    name: str
    devices: tuple[Device, ...]
    link: Link | None = None
    """All NICs of the host together."""
    nic_of_device: tuple[int, ...] = ()
    """The NIC of each device; empty: there is one. NICs are equal."""
    fabric: Fabric | None = None
    """What joins the devices; None: messages within the host are free."""
    rack: str = ""
    """Empty: the host is connected to the root switch."""
    cpus: float | None = None
    """In a lab: cores that all processes of the host may use together. None: all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Hosts, links and devices of a job."""

    name: str
    hosts: tuple[Host, ...]
    emulation: str = "none"
    description: str = ""
    any_ranks: bool = False
    """The one device is repeated for any number of ranks."""
    in_lab: bool = False
    """The job runs in a lab: links are real, only devices may be paced."""
    racks: tuple[Rack, ...] = ()
    pairs: tuple[Pair, ...] = ()

    @property
    def topology(self) -> Topology:
        """All links as a tree. Equal clusters share one."""
        wirings = tuple(
            Wiring(
                name=host.name,
                num_devices=len(host.devices),
                link=host.link,
                nic_of_device=host.nic_of_device,
                fabric=host.fabric,
                rack=host.rack,
            )
            for host in self.hosts
        )
        return make_topology(wirings, self.racks, self.pairs)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The device of each rank."""
        return tuple(device for host in self.hosts for device in host.devices)

    @property
    def host_of_rank(self) -> tuple[int, ...]:
        """Index of the host of each rank."""
        return tuple(index for index, host in enumerate(self.hosts) for _ in host.devices)

    @property
    def is_emulated(self) -> bool:
        """Devices are paced."""
        return self.emulation != "none"

    @property
    def paces_links(self) -> bool:
        return self.is_emulated and not self.in_lab

    @property
    def label(self) -> str:
        """The label of every measurement on this cluster."""
        if self.in_lab:
            return "lab, paced devices" if self.is_emulated else "lab"
        return "emulated" if self.is_emulated else "measured on this machine"

    def fingerprint(self) -> str:
        """Equal for equal clusters: names of hosts and devices count, the description does not."""
        data = to_data(dataclasses.replace(self, description=""))
        for kind, table in (
            ("cluster", data),
            *(("host", host) for host in data["hosts"]),
            *(("device", device) for host in data["hosts"] for device in host["devices"]),
        ):
            for name in _NOT_IN_FINGERPRINT_IF_EMPTY[kind]:
                if not table[name]:
                    del table[name]
        return digest(data)

    def for_ranks(self, num_ranks: int) -> Cluster:
        """The part of the cluster that a job of `num_ranks` runs on: its first devices, or its one device repeated."""
        if num_ranks < 1:
            raise SpecError(f"a job of {num_ranks} ranks cannot run: start at least 1")
        if self.any_ranks:
            host = self.hosts[0]
            repeated = dataclasses.replace(host, devices=host.devices * num_ranks)
            return dataclasses.replace(self, name=f"{self.name}-x{num_ranks}", hosts=(repeated,), any_ranks=False)
        available = len(self.devices)
        if num_ranks > available:
            raise SpecError(
                f"the job has {num_ranks} ranks but cluster {self.name!r} has {available} devices: "
                f"start it with mpirun -n {available} (or --ranks {available}), or name a larger cluster"
            )
        if num_ranks == available:
            return self
        return dataclasses.replace(self.part(range(num_ranks)), name=f"{self.name}-first{num_ranks}")

    def part(self, ranks: Iterable[int]) -> Cluster:
        """The cluster as these ranks see it, were no other started: hosts without any of them are gone, and so are their NICs."""
        kept, first = set(ranks), 0
        hosts: list[Host] = []
        now: dict[str, str] = {}
        for host in self.hosts:
            places = [place for place in range(len(host.devices)) if first + place in kept]
            first += len(host.devices)
            if places:
                hosts.append(with_devices(host, places))
                now[host.name] = host.name
                now |= {f"{host.name}/{old}": f"{host.name}/{new}" for new, old in enumerate(places)}
        pairs = tuple(
            dataclasses.replace(pair, between=(now[pair.between[0]], now[pair.between[1]]))
            for pair in self.pairs
            if now.keys() >= set(pair.between)
        )
        return dataclasses.replace(self, hosts=tuple(hosts), pairs=pairs)

    def on_hardware(self, descriptions: list[str]) -> Cluster:
        """A real cluster, named after the devices that its ranks found, so that a plan tuned on one machine is not reused on another."""
        if self.is_emulated:
            return self
        names = iter(descriptions)
        hosts = tuple(
            dataclasses.replace(host, devices=tuple(dataclasses.replace(d, name=next(names)) for d in host.devices))
            for host in self.hosts
        )
        return dataclasses.replace(self, hosts=hosts)


def with_devices(host: Host, places: Sequence[int]) -> Host:
    """A host of which a job uses some devices only."""
    if len(places) == len(host.devices):
        return host
    nics, link, fabric = host.nic_of_device, host.link, host.fabric
    if nics:
        used = sorted({nics[place] for place in places})
        share = len(used) / (max(nics) + 1)
        nics = tuple(used.index(nics[place]) for place in places) if len(used) > 1 else ()
        if link is not None:
            link = dataclasses.replace(
                link, up_bytes_per_s=link.up_bytes_per_s * share, down_bytes_per_s=link.down_bytes_per_s * share
            )
    if fabric is not None:
        kept = (tuple(places.index(place) for place in island if place in places) for island in fabric.islands)
        fabric = dataclasses.replace(fabric, islands=tuple(island for island in kept if island))
    devices = tuple(host.devices[place] for place in places)
    return dataclasses.replace(host, devices=devices, nic_of_device=nics, link=link, fabric=fabric)


def cluster_names() -> list[str]:
    """The clusters that ship with the package."""
    return table_names(CLUSTER_FOLDER)


def stated_name(name: str) -> str:
    """The cluster that `name` is a part of: "mixed4-first2" is of "mixed4", "this-machine-x2" of "this-machine"."""
    part = _PART.fullmatch(name)
    return part["name"] if part else name


def load_cluster(spec: str) -> Cluster:
    """A shipped cluster by name, or a part of it by the name that reports have; or a TOML file by path."""
    part = _PART.fullmatch(spec)
    if part and part["name"] in cluster_names() and spec not in cluster_names():
        whole = load_cluster(part["name"]).for_ranks(int(part["num_ranks"]))
        if spec in (whole.name, f"{whole.name}-first{len(whole.devices)}"):
            return whole
    path, data = load_table(spec, CLUSTER_FOLDER, "cluster", remedy="your own: --cluster FILE.toml")
    return parse_cluster(data, where=path.name, default_name=path.stem)


def parse_cluster(data: dict[str, Any], *, where: str, default_name: str) -> Cluster:
    """A Cluster from the tables of a cluster file."""
    known_keys(
        data, ("name", "description", "emulation", "any_ranks", "device", "host", "fabric", "rack", "pair"), where
    )
    emulation = data.get("emulation", "none")
    if emulation not in EMULATIONS:
        raise unknown_name(f"emulation in {where}:", str(emulation), EMULATIONS)
    if not isinstance(data.get("device", {}), dict) or not isinstance(data.get("host", []), list):
        raise SpecError(f"{where}: devices are tables [device.NAME] and hosts are [[host]]")
    if not isinstance(data.get("any_ranks", False), bool):
        raise SpecError(f"{where} any_ranks is {data['any_ranks']!r}: it must be true or false")
    kinds = {name: _device(name, table, f"{where} [device.{name}]") for name, table in data.get("device", {}).items()}
    wires = Wires.read(data, where)
    hosts = tuple(
        host
        for index, table in enumerate(data.get("host", []))
        for host in _hosts(table, kinds, wires, f"{where} [[host]] {index}")
    )
    if not hosts:
        raise SpecError(f"{where} has no [[host]]: a cluster needs at least one host with a device")
    if len({host.name for host in hosts}) < len(hosts):
        raise SpecError(f"{where} names two hosts alike: give every [[host]] its own name")
    name = str(data.get("name", default_name))
    if not is_path_name(name):
        raise SpecError(f"{where} names the cluster {shown(name)}: it becomes a folder, so it needs {PATH_NAME_RULE}")
    cluster = Cluster(
        name=name,
        hosts=hosts,
        emulation=emulation,
        description=str(data.get("description", "")),
        any_ranks=data.get("any_ranks", False),
        racks=tuple(wires.racks.values()),
        pairs=wires.pairs({host.name: len(host.devices) for host in hosts}),
    )
    if cluster.any_ranks and len(cluster.devices) != 1:
        raise SpecError(
            f"{where} has any_ranks and {len(cluster.devices)} devices: any_ranks needs exactly one to repeat"
        )
    if cluster.any_ranks and (wires.pair_tables or any(host.fabric and host.fabric.islands for host in hosts)):
        raise SpecError(f"{where} has any_ranks with islands or pairs, which name devices: state its devices instead")
    if cluster.is_emulated and any(device.flops_per_s is None for device in cluster.devices):
        raise SpecError(f'{where} is paced, but a device states no speed: give every [device.*] a flops = "… GFLOP/s"')
    return cluster


def _device(name: str, table: dict[str, Any], where: str) -> Device:
    known_keys(
        table,
        ("flops", "memory_bandwidth", "launch", "memory", "reserved", "price_per_hour", "busy_power", "idle_power"),
        where,
    )

    def quantity(key: str, units: dict[str, float]) -> float | None:
        return parse_quantity(table[key], units, f"{where} {key}") if key in table else None

    return Device(
        name=name,
        flops_per_s=quantity("flops", FLOPS_PER_S),
        memory_bytes_per_s=quantity("memory_bandwidth", BYTES_PER_S),
        launch_s=quantity("launch", SECONDS) or 0.0,
        memory_bytes=quantity("memory", BYTES),
        reserved_bytes=quantity("reserved", BYTES) or 0.0,
        price_per_hour=_price(table, where),
        busy_watts=quantity("busy_power", WATTS),
        idle_watts=quantity("idle_power", WATTS),
    )


def _price(table: dict[str, Any], where: str) -> float | None:
    price = table.get("price_per_hour")
    if price is None:
        return None
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
        raise SpecError(f"{where} price_per_hour is {price!r}: it must be a number from 0")
    return float(price)


def _hosts(table: dict[str, Any], kinds: dict[str, Device], wires: Wires, where: str) -> Iterator[Host]:
    """The hosts of one entry: one, or `count` with numbered names."""
    known_keys(
        table,
        ("name", "count", "devices", "uplink", "downlink", "latency", "cpus", "nics", "fabric", "rack"),
        where,
    )
    host, count = _host(table, kinds, wires, where), table.get("count")
    if count is None:
        yield host
        return
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_DEVICES or "name" not in table:
        raise SpecError(
            f"{where} count is {count!r} with name {table.get('name')!r}: it must be a whole number from 1 to "
            f"{_MOST_DEVICES}, beside a name that the number of each host is added to"
        )
    for number in range(count):
        yield dataclasses.replace(host, name=f"{host.name}{number}")


def _host(table: dict[str, Any], kinds: dict[str, Device], wires: Wires, where: str) -> Host:
    if not isinstance(names := table.get("devices"), list) or not names:
        raise SpecError(f'{where} has no devices: add devices = ["…"], naming [device.*] tables')
    devices: list[Device] = []
    for name in map(str, names):
        several = None if name in kinds else _SEVERAL.fullmatch(name)
        kind, number = (several["kind"], int(several["count"])) if several else (name, 1)
        if kind not in kinds:
            raise unknown_name(f"device in {where}:", kind, kinds)
        if len(devices) + number > _MOST_DEVICES:
            raise SpecError(f"{where} has {len(devices) + number} devices: a cluster file has at most {_MOST_DEVICES}")
        devices += [kinds[kind]] * number
    cpus = table.get("cpus")
    if cpus is not None and (isinstance(cpus, bool) or not isinstance(cpus, int | float) or cpus <= 0):
        raise SpecError(f"{where} cpus is {cpus!r}: it must be a number of cores above zero, such as 0.5")
    nics = wires.nics(table, len(devices), where)
    return Host(
        name=str(table.get("name", where)),
        devices=tuple(devices),
        link=wires.host_link(table, max(nics, default=0) + 1, where),
        nic_of_device=nics,
        fabric=wires.fabric_of(table, len(devices), where),
        rack=wires.rack_of(table, where),
        cpus=None if cpus is None else float(cpus),
    )
