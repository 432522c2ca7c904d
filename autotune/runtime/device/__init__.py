"""Accelerators: no module outside this folder names torch's device modules or compares device types.

A `DeviceHandle` is what the rest of the runtime asks of the device of its tensors. The handle of the CPU does nothing and
costs next to nothing; that of an accelerator uses the module that torch has for its type (`torch.get_device_module`), which
is the same for NVIDIA and AMD ("cuda") and has the same names for Intel ("xpu").

An accelerator runs behind the host: a call returns when work is queued, not when it is done. Hence two things that the host
clock cannot give: a `Stamp`, the time at which the device reaches a point of the current stream, and a `Mark`, such a point
that another stream, or the host, waits for.
"""

from __future__ import annotations

from autotune.runtime.device.accelerator import AcceleratorHandle
from autotune.runtime.device.cpu import CPU, NO_MARK, DeviceHandle, Mark, Stamp
from autotune.runtime.device.devices import (
    accelerator_type,
    bus_address,
    handle,
    handle_of,
    is_amd,
    is_autocast_on,
    take,
    total_bytes,
    uuid,
    visible,
)

__all__ = [
    "CPU",
    "NO_MARK",
    "AcceleratorHandle",
    "DeviceHandle",
    "Mark",
    "Stamp",
    "accelerator_type",
    "bus_address",
    "handle",
    "handle_of",
    "is_amd",
    "is_autocast_on",
    "take",
    "total_bytes",
    "uuid",
    "visible",
]
