"""A cluster: hosts, each connected to one switch by an uplink and a downlink, and their devices; one rank per device.

Ranks are numbered over the hosts' devices in file order. A cluster is *emulated* when its file states device speeds and
`emulation = "paced"`; with `emulation = "none"` the devices are those that the ranks run on.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.workloads.errors import SpecError, unknown_name
from autotune.workloads.quantity import BYTES, BYTES_PER_S, FLOPS_PER_S, SECONDS, WATTS, parse_quantity
from autotune.workloads.serial import digest
from autotune.workloads.tables import known_keys, load_table, table_names

CLUSTER_FOLDER = Path(__file__).parent / "clusters"
EMULATIONS = ("none", "paced")
_PART = re.compile(r"(?P<name>.+)-(?:x|first)(?P<num_ranks>[1-9]\d*)")
"""Names that `for_ranks` gives to parts of a cluster."""


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
    price_per_hour: float | None = None
    """In any currency; predicted costs use the same."""
    busy_watts: float | None = None
    idle_watts: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """The link of a host to the switch, shared by all traffic of its devices."""

    up_bytes_per_s: float
    down_bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A machine: its devices, and its link (None: the real network)."""

    name: str
    devices: tuple[Device, ...]
    link: Link | None = None
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
        return digest(dataclasses.replace(self, description=""))

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
        hosts, left = [], num_ranks
        for host in self.hosts:
            if kept := host.devices[:left]:
                hosts.append(dataclasses.replace(host, devices=kept))
                left -= len(kept)
        return dataclasses.replace(self, name=f"{self.name}-first{num_ranks}", hosts=tuple(hosts))

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
    known_keys(data, ("name", "description", "emulation", "any_ranks", "device", "host"), where)
    emulation = data.get("emulation", "none")
    if emulation not in EMULATIONS:
        raise unknown_name(f"emulation in {where}:", str(emulation), EMULATIONS)
    if not isinstance(data.get("device", {}), dict) or not isinstance(data.get("host", []), list):
        raise SpecError(f"{where}: devices are tables [device.NAME] and hosts are [[host]]")
    if not isinstance(data.get("any_ranks", False), bool):
        raise SpecError(f"{where} any_ranks is {data['any_ranks']!r}: it must be true or false")
    kinds = {name: _device(name, table, f"{where} [device.{name}]") for name, table in data.get("device", {}).items()}
    hosts = tuple(_host(table, kinds, f"{where} [[host]] {index}") for index, table in enumerate(data.get("host", [])))
    if not hosts:
        raise SpecError(f"{where} has no [[host]]: a cluster needs at least one host with a device")
    if len({host.name for host in hosts}) < len(hosts):
        raise SpecError(f"{where} names two hosts alike: give every [[host]] its own name")
    name = str(data.get("name", default_name))
    if not name or "/" in name:
        raise SpecError(
            f"{where} names the cluster {name!r}: a name is not empty and has no slash, it becomes a folder"
        )
    cluster = Cluster(
        name=name,
        hosts=hosts,
        emulation=emulation,
        description=str(data.get("description", "")),
        any_ranks=data.get("any_ranks", False),
    )
    if cluster.any_ranks and len(cluster.devices) != 1:
        raise SpecError(
            f"{where} has any_ranks and {len(cluster.devices)} devices: any_ranks needs exactly one to repeat"
        )
    if cluster.is_emulated and any(device.flops_per_s is None for device in cluster.devices):
        raise SpecError(f'{where} is paced, but a device states no speed: give every [device.*] a flops = "… GFLOP/s"')
    return cluster


def _device(name: str, table: dict[str, Any], where: str) -> Device:
    known_keys(
        table, ("flops", "memory_bandwidth", "launch", "memory", "price_per_hour", "busy_power", "idle_power"), where
    )

    def quantity(key: str, units: dict[str, float]) -> float | None:
        return parse_quantity(table[key], units, f"{where} {key}") if key in table else None

    return Device(
        name=name,
        flops_per_s=quantity("flops", FLOPS_PER_S),
        memory_bytes_per_s=quantity("memory_bandwidth", BYTES_PER_S),
        launch_s=quantity("launch", SECONDS) or 0.0,
        memory_bytes=quantity("memory", BYTES),
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


def _host(table: dict[str, Any], kinds: dict[str, Device], where: str) -> Host:
    known_keys(table, ("name", "devices", "uplink", "downlink", "latency", "cpus"), where)
    if not isinstance(names := table.get("devices"), list) or not names:
        raise SpecError(f'{where} has no devices: add devices = ["…"], naming [device.*] tables')
    for name in names:
        if name not in kinds:
            raise unknown_name(f"device in {where}:", str(name), kinds)
    link = None
    if ("uplink" in table) != ("downlink" in table):
        raise SpecError(f"{where} states only one of uplink and downlink: state both, or neither")
    if "latency" in table and "uplink" not in table:
        raise SpecError(f"{where} states a latency but no uplink and downlink: state them, or leave the latency out")
    if "uplink" in table:
        link = Link(
            up_bytes_per_s=parse_quantity(table["uplink"], BYTES_PER_S, f"{where} uplink"),
            down_bytes_per_s=parse_quantity(table["downlink"], BYTES_PER_S, f"{where} downlink"),
            latency_s=parse_quantity(table["latency"], SECONDS, f"{where} latency") if "latency" in table else 0.0,
        )
    cpus = table.get("cpus")
    if cpus is not None and (isinstance(cpus, bool) or not isinstance(cpus, int | float) or cpus <= 0):
        raise SpecError(f"{where} cpus is {cpus!r}: it must be a number of cores above zero, such as 0.5")
    devices = tuple(kinds[name] for name in names)
    return Host(
        name=str(table.get("name", where)), devices=devices, link=link, cpus=None if cpus is None else float(cpus)
    )
