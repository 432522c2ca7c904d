"""Whether the memory meter sees what is there: memory of a stated size is allocated, and the meter must show it.

On an accelerator the meter is torch's own count; the driver's count of free memory is read beside it. On a CPU it is our
accounting: a model whose parameters, gradients and saved activations are known, and the growth of the process beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch
from torch import nn

from autotune.runtime.device import DeviceHandle
from autotune.runtime.train.memory import static_bytes
from autotune.workloads.capture import SavedTensorMeter
from autotune.workloads.plan import MIB

STATED_BYTES = 64 * MIB
_WIDTH, _ROWS = 1024, 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryFacts:
    """What one rank has measured."""

    stated_bytes: int
    metered_bytes: int
    other_bytes: int
    """How much less the driver has free, or by how much this process has grown."""
    is_accounted: bool
    """Whether the meter is our accounting."""
    free_bytes: int | None
    """Of the device, afterwards; None for a CPU."""


def meter_memory(device: DeviceHandle) -> MemoryFacts:
    """Needs no other rank."""
    return _on_accelerator(device) if device.is_accelerator else _accounted(device)


def _on_accelerator(device: DeviceHandle) -> MemoryFacts:
    device.synchronize()
    device.release_memory()
    device.reset_peak()
    before, free_before = device.peak_bytes(0), device.free_bytes() or 0
    held = torch.ones(STATED_BYTES, dtype=torch.uint8, device=device.device)
    device.synchronize()
    metered, free = device.peak_bytes(0) - before, device.free_bytes() or 0
    del held
    device.release_memory()
    return MemoryFacts(
        stated_bytes=STATED_BYTES,
        metered_bytes=metered,
        other_bytes=free_before - free,
        is_accounted=False,
        free_bytes=device.free_bytes(),
    )


def _accounted(device: DeviceHandle) -> MemoryFacts:
    """Two layers that save their input and their output for the backward pass; parameters and gradients beside them."""
    process = psutil.Process()
    before = process.memory_info().rss
    model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH, bias=False), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    meter = SavedTensorMeter(model)
    device.reset_peak()
    with meter.watch():
        loss = model(torch.ones(_ROWS, _WIDTH)).sum()
        grown = process.memory_info().rss - before
        loss.backward()
    held = static_bytes(model, optimizer, buffer_bytes=0)
    return MemoryFacts(
        stated_bytes=2 * 4 * _WIDTH * _WIDTH + 2 * 4 * _ROWS * _WIDTH,
        metered_bytes=device.peak_bytes(held + meter.peak_bytes),
        other_bytes=grown,
        is_accounted=True,
        free_bytes=None,
    )
