"""What a host has, without torch: GPUs and how they are joined, cores, and the network interfaces that are up.

Speeds of interfaces are those that the driver reports (psutil), of InfiniBand ports those of /sys/class/infiniband. Virtual
interfaces are left out: bridges, tunnels, and the host's end of a pair to a container.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.profilers.gpu_links import Gpu, find_gpus

_INFINIBAND = Path("/sys/class/infiniband")
_VIRTUAL = re.compile(r"(lo|docker|br-|virbr|veth|tun|tap|cni|flannel|cali|bond_slave|dummy).*")
_RATE = re.compile(r"\s*(?P<gbit>[0-9.]+) Gb/sec.*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Nic:
    """A network interface."""

    name: str
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A host as one of its processes sees it."""

    host: str
    num_cores: int
    memory_bytes: float
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    processor: str = "cpu"


def find_machine(infiniband: Path = _INFINIBAND) -> Machine:
    """This host."""
    return Machine(
        host=socket.gethostname(),
        num_cores=psutil.cpu_count() or 1,
        memory_bytes=float(psutil.virtual_memory().total),
        gpus=find_gpus(),
        nics=(*_infiniband(infiniband), *_interfaces()),
    )


def fastest_nics(machine: Machine) -> tuple[Nic, ...]:
    """Those of the highest speed, which a job would use."""
    most = max((nic.bytes_per_s for nic in machine.nics), default=0.0)
    return tuple(nic for nic in machine.nics if nic.bytes_per_s == most)


def _interfaces() -> Iterator[Nic]:
    """Ethernet: up, of known speed, not virtual. Interfaces of InfiniBand are counted as its ports."""
    for name, state in sorted(psutil.net_if_stats().items()):
        if state.isup and state.speed > 0 and not _VIRTUAL.fullmatch(name) and not name.startswith("ib"):
            yield Nic(name=name, bytes_per_s=state.speed * 1e6 / 8)


def _infiniband(folder: Path) -> Iterator[Nic]:
    for rate in sorted(folder.glob("*/ports/*/rate")):
        found = _RATE.match(rate.read_text(encoding="utf-8"))
        state = rate.with_name("state")
        if found and (not state.exists() or "ACTIVE" in state.read_text(encoding="utf-8")):
            yield Nic(name=f"{rate.parts[-4]}:{rate.parts[-2]}", bytes_per_s=float(found["gbit"]) * 1e9 / 8)
