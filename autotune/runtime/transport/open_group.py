"""Transports: how the process group of each kind is opened. `workloads.plan.choices` names the functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from autotune.runtime.control.mpi import Control
from autotune.runtime.device import CPU, DeviceHandle
from autotune.runtime.transport.accelerator_group import AcceleratorGroup
from autotune.runtime.transport.mpi_group import MpiGroup
from autotune.runtime.transport.staged_group import StagedGroup
from autotune.workloads.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenGroup:
    """What a transport gets to open a group with, on every rank."""

    control: Control
    store: Store
    """Shared by the ranks, for this group alone."""
    timeout_s: float
    gloo_device: Any
    """The network interface that gloo uses."""
    device: DeviceHandle = CPU
    """The device of this rank's tensors."""
    order: tuple[int, ...] = ()
    """The ranks in the order of a ring over them, where the transport heeds one; empty: as they are numbered."""

    @property
    def place(self) -> int:
        """The number of this rank in the group that is opened."""
        return self.order.index(self.control.rank) if self.order else self.control.rank

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self.timeout_s)


def open_gloo(request: OpenGroup) -> dist.ProcessGroup:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = request.timeout
    options._devices = [request.gloo_device]
    backend = dist.ProcessGroupGloo(request.store, request.place, request.control.size, options)
    return _with_backend(request, backend, dist.ProcessGroup.BackendType.GLOO, torch.device("cpu"))


def open_mpi(request: OpenGroup) -> dist.ProcessGroup:
    comm = request.control.comm.Split(0, request.place) if request.order else request.control.comm.Dup()
    return MpiGroup(comm, timeout_s=request.timeout_s)


def open_nccl(request: OpenGroup) -> dist.ProcessGroup:
    if not dist.is_nccl_available():
        raise SpecError("transport 'nccl' is not available here: use gloo or mpi, or install a CUDA build of torch")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = request.timeout
    store = PrefixStore("nccl", request.store)
    backend = dist.ProcessGroupNCCL(store, request.control.rank, request.control.size, options)
    nccl = _with_backend(request, backend, dist.ProcessGroup.BackendType.NCCL, request.device.device)
    return beside_messages(request, nccl)


def beside_messages(request: OpenGroup, collectives: dist.ProcessGroup) -> dist.ProcessGroup:
    """`collectives` for tensors of the accelerator; messages, and tensors of the host, go over gloo."""
    gloo = open_gloo(replace(request, store=PrefixStore("messages", request.store)))
    return AcceleratorGroup(collectives, StagedGroup(gloo, request.device))


def _with_backend(request: OpenGroup, backend: Any, kind: Any, device: torch.device) -> dist.ProcessGroup:
    group = dist.ProcessGroup(request.store, request.place, request.control.size)
    group._set_default_backend(kind)
    group._register_backend(device, kind, backend)
    return group
