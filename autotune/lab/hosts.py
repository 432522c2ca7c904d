"""The description of a lab: names, addresses and limits of its hosts, from a cluster file. Data only.

Every resource of a lab contains the lab's name: namespaces `atl-<lab>-<n>` and `atl-<lab>-sw`, the control group `atl-<lab>`, the
folder `/run/autotune-lab/<lab>`. So leftovers can be found and removed by name, and labs do not interfere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf
from pathlib import Path

from autotune.results.store.store import read_json
from autotune.workloads.cluster import Cluster, Host, Link
from autotune.workloads.errors import SpecError

STATE_FOLDER = Path("/run/autotune-lab")
DESCRIPTION = "lab.json"
_NAME = re.compile(r"[a-z0-9]{1,8}")
_MOST_HOSTS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class LabHost:
    """One host of a lab."""

    index: int
    name: str
    num_ranks: int
    link: Link | None
    cpus: float | None
    """Cores that its processes may use together; None: all."""
    inside_bytes_per_s: float | None = None
    """Of all that its ranks send one another, over loopback; None: as fast as the machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lab:
    """A lab by name; its hosts are empty where only the name matters."""

    name: str
    cluster: str = ""
    hosts: tuple[LabHost, ...] = ()

    @property
    def prefix(self) -> str:
        return f"atl-{self.name}-"

    @property
    def switch(self) -> str:
        return f"{self.prefix}sw"

    @property
    def folder(self) -> Path:
        return STATE_FOLDER / self.name

    def namespace(self, host: LabHost) -> str:
        return f"{self.prefix}{host.index}"

    def port(self, host: LabHost) -> str:
        """The switch's interface to a host."""
        return f"port{host.index}"

    def address(self, host: LabHost) -> str:
        """The same addresses in every lab: their networks are not connected."""
        return f"10.77.0.{host.index + 1}"

    def enter_script(self, host: LabHost) -> Path:
        """Runs a command on a host."""
        return self.folder / f"enter-{host.name}"


def check_lab_name(name: str) -> str:
    """The name is part of the names of namespaces and folders."""
    if not _NAME.fullmatch(name):
        raise SpecError(f"lab name {name!r}: use 1 to 8 lower-case letters and digits")
    return name


def load_lab(name: str) -> Lab:
    """The lab of that name, which must be up."""
    path = Lab(name=name).folder / DESCRIPTION
    if not path.exists():
        raise SpecError(f"lab {name!r} is not up: `autotune lab up --cluster FILE --name {name}` first")
    return read_json(Lab, path)


def lab_of(cluster: Cluster, name: str) -> Lab:
    """The lab that a cluster file describes."""
    if len(cluster.hosts) > _MOST_HOSTS:
        raise SpecError(f"cluster {cluster.name!r} has {len(cluster.hosts)} hosts: a lab has at most {_MOST_HOSTS}")
    for host in cluster.hosts:
        if not re.fullmatch(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?", host.name):
            raise SpecError(
                f"host {host.name!r} of cluster {cluster.name!r}: a lab host's name has only letters, digits and -"
            )
    _check_shape(cluster)
    hosts = tuple(
        LabHost(
            index=index,
            name=host.name,
            num_ranks=len(host.devices),
            link=host.link,
            cpus=host.cpus,
            inside_bytes_per_s=inside_bytes_per_s(host),
        )
        for index, host in enumerate(cluster.hosts)
    )
    return Lab(name=check_lab_name(name), cluster=cluster.name, hosts=hosts)


def inside_bytes_per_s(host: Host) -> float | None:
    """Of a host's loopback: its fabric in total, or all of its devices sending at once."""
    fabric = host.fabric
    if fabric is None or len(host.devices) == 1:
        return None
    of_devices = fabric.device.up_bytes_per_s * len(host.devices) if fabric.device is not None else inf
    least = min(of_devices, fabric.total_bytes_per_s or inf)
    return least if least < inf else None


def _check_shape(cluster: Cluster) -> None:
    """One switch, one NIC per host, one speed inside: what else a file states would be predicted and not be there."""
    found = [
        *(["racks"] if cluster.racks else []),
        *(["pairs"] if cluster.pairs else []),
        *(["several NICs"] if any(host.nic_of_device for host in cluster.hosts) else []),
        *(["islands"] if any(host.fabric and host.fabric.islands for host in cluster.hosts) else []),
    ]
    if found:
        raise SpecError(
            f"cluster {cluster.name!r} states {', '.join(found)}: a lab has one switch, one NIC per host and one speed inside "
            "each; leave them out, or use paced emulation, which has them all"
        )
