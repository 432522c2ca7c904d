"""What an op costs on a device: the larger of arithmetic and memory traffic (a roofline), plus the launch of each call.

The emulated devices and every prediction read this one function, so that they cannot disagree on what a device is.
"""

from __future__ import annotations

from autotune.workloads.cluster import Device
from autotune.workloads.graph import Op, OpGraph


def op_s(op: Op, device: Device, num_samples: float, *, backward: bool = False) -> float:
    """Seconds of one pass of `op` over `num_samples` on a device whose speed is stated."""
    assert device.flops_per_s is not None
    factor = op.backward_factor if backward else 1.0
    if factor == 0 or num_samples == 0:
        return 0.0
    arithmetic_s = op.flops_per_sample * num_samples / device.flops_per_s
    moved_bytes = op.fixed_bytes + op.bytes_per_sample * num_samples
    traffic_s = moved_bytes / device.memory_bytes_per_s if device.memory_bytes_per_s else 0.0
    return factor * max(arithmetic_s, traffic_s) + device.launch_s * op.num_calls


def compute_s(graph: OpGraph, device: Device, num_samples: int) -> float:
    """Seconds of forward and backward over the whole model."""
    return sum(op_s(op, device, num_samples) + op_s(op, device, num_samples, backward=True) for op in graph.ops)
