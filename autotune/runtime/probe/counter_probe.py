"""Whether the driver's counters are those of the device that torch computes on.

The device is found by its UUID (NVIDIA) or its PCI address (AMD), since torch and the driver may number devices differently. That
it is the right one is then shown by what it does: memory that torch allocates must appear in the driver's count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from autotune.profilers.observer import Observer
from autotune.runtime.device import DeviceHandle
from autotune.runtime.train.tracing import open_accelerator
from autotune.workloads.plan import MIB

ALLOCATED_BYTES = 256 * MIB
_USED = "gpu_memory_used"


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterFacts:
    """What one rank has found."""

    name: str
    """Of the device, with what identifies it."""
    values: dict[str, float]
    """Readings of the counters that the device has."""
    unavailable: dict[str, str]
    """The others, with the driver's reason."""
    allocated_bytes: int
    """By torch, meanwhile."""
    grown_bytes: float | None
    """By how much the memory in use has grown in the driver's count; None: the driver does not count it."""


def read_counters(
    device: DeviceHandle, open_device: Callable[[torch.device], Observer] = open_accelerator
) -> CounterFacts:
    """Needs no other rank, but other ranks on the same device would change what it counts."""
    observer = open_device(device.device)
    try:
        device.release_memory()
        before = observer.sample()
        allocated_bytes = _allocated(device)
        held = torch.ones(allocated_bytes, dtype=torch.uint8, device=device.device)
        device.synchronize()
        after = observer.sample()
        del held
        device.release_memory()
        grown = after[_USED] - before[_USED] if _USED in after and _USED in before else None
        return CounterFacts(
            name=observer.name,
            values=before,
            unavailable={one.name: one.reason for one in observer.metrics if not one.available},
            allocated_bytes=allocated_bytes,
            grown_bytes=grown,
        )
    finally:
        observer.close()


def _allocated(device: DeviceHandle) -> int:
    """A full device must not fail here."""
    free = device.free_bytes()
    return ALLOCATED_BYTES if free is None else min(ALLOCATED_BYTES, free // 2)
