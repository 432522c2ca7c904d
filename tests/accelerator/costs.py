"""How long an operation takes on a device: its FLOPs and bytes over the device's speeds.

FLOPs of matrix products, convolutions and attention are torch's own count; every operation also reads and writes its
tensors once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

from tests.accelerator.devices import Device

_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,
}


def flops(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    packet = func._overloadpacket
    count = flop_registry.get(packet) or _ATTENTION.get(packet)
    return float(count(*args, **kwargs, out_val=out)) if count else 0.0


def duration_s(device: Device, flops: float, num_bytes: int) -> float:
    """launch + (FLOPs / FLOPs per second + bytes / bytes per second) · slowness."""
    return (device.launch_s + flops / device.flops_per_s + num_bytes / device.bytes_per_s) * device.next_slowness()


def link_s(device: Device, num_bytes: int) -> float:
    """A copy between host and device."""
    return device.launch_s + num_bytes / device.link_bytes_per_s
