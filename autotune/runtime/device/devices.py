"""The devices of this process: which there are, the handle of each, and what the driver states of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from autotune.runtime.device.accelerator import AcceleratorHandle
from autotune.runtime.device.cpu import CPU, DeviceHandle
from autotune.runtime.launch.device_choice import VisibleDevices


@cache
def handle(device: torch.device) -> DeviceHandle:
    """The handle of a device."""
    return CPU if device.type == "cpu" else AcceleratorHandle(device)


def handle_of(tensor: Tensor) -> DeviceHandle:
    """The handle of the device that holds a tensor."""
    return handle(tensor.device)


@cache
def accelerator_type() -> str:
    """The type of the accelerators of this process, as torch names it; empty: it has none."""
    for name in _known_types():
        module: Any = getattr(torch, name, None)
        if module is not None and module.is_available() and module.device_count():
            return name
    return ""


@cache
def visible() -> VisibleDevices:
    """The accelerators that this process can use."""
    kind = accelerator_type()
    if not kind:
        return VisibleDevices()
    module = torch.get_device_module(kind)
    indices = range(module.device_count())
    return VisibleDevices(
        type=kind,
        names=tuple(str(module.get_device_name(index)) for index in indices),
        uuids=tuple(str(getattr(module.get_device_properties(index), "uuid", "")) for index in indices),
    )


def take(index: int | None) -> DeviceHandle:
    """The accelerator with this index, which the calling thread uses from here on; None: the CPU."""
    if index is None:
        return CPU
    chosen = handle(torch.device(accelerator_type(), index))
    chosen.bind()
    return chosen


def is_autocast_on() -> bool:
    """Whether autocast is on in this thread for any device."""
    return any(torch.is_autocast_enabled(kind) for kind in _autocast_types())


def is_amd() -> bool:
    """Whether this torch is built for AMD, whose devices it names as NVIDIA's."""
    return torch.version.hip is not None


def bus_address(device: torch.device) -> str:
    """Where the accelerator is on the PCI bus, as the kernel writes it."""
    found: Any = torch.get_device_module(device).get_device_properties(device)
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def uuid(device: torch.device) -> str:
    """The UUID of an accelerator."""
    found: Any = torch.get_device_module(device).get_device_properties(device)
    return str(found.uuid)


def total_bytes(device: torch.device) -> int:
    """The memory of an accelerator."""
    found: Any = torch.get_device_module(device).get_device_properties(device)
    return int(found.total_memory)


def _known_types() -> tuple[str, ...]:
    """CUDA and ROCm, Intel, and the type that an extension of torch has registered."""
    return ("cuda", "xpu", torch._C._get_privateuse1_backend_name())


@cache
def _autocast_types() -> tuple[str, ...]:
    return ("cpu", *filter(None, (accelerator_type(),)))
