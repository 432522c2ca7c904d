"""Cost of an op on a device: the larger of arithmetic and memory traffic (a roofline), plus the launch of each call.

The coefficients of an op (`stated_line`) and the formula over them (`line_s`) stand here and nowhere else. Emulated devices
and closed forms evaluate them one op at a time (`op_s`); the simulator keeps the coefficients in tables and evaluates the
same function compiled (`autotune.simulate.data_parallel.pass_seconds`). This module does not load Numba: every rank imports it.
"""

from __future__ import annotations

from typing import NamedTuple

from autotune.workloads.cluster import Device
from autotune.workloads.graph import Op, OpGraph


class OpLine(NamedTuple):
    """Coefficients of one pass of an op on one device; `line_s` takes them in this order."""

    arithmetic_s: float
    """Per sample."""
    fixed_s: float
    """Of traffic: per pass."""
    per_sample_s: float
    """Of traffic: per sample."""
    launch_s: float
    """Per pass."""


def line_s(arithmetic_s: float, fixed_s: float, per_sample_s: float, launch_s: float, num_samples: float) -> float:
    """Seconds of a pass: max(arithmetic · n, fixed + per_sample · n) + launch; 0 for no samples.

    Compiled callers are cached on disk by their own file: after a change here, touch `data_parallel.py`.
    """
    if num_samples <= 0:
        return 0.0
    return max(arithmetic_s * num_samples, fixed_s + per_sample_s * num_samples) + launch_s


def stated_line(op: Op, device: Device, *, backward: bool = False) -> OpLine:
    """The coefficients that follow from the speed that a device states. A backward without work is not launched."""
    assert device.flops_per_s is not None
    factor = op.backward_factor if backward else 1.0
    if factor == 0:
        return OpLine(0.0, 0.0, 0.0, 0.0)
    traffic = factor / device.memory_bytes_per_s if device.memory_bytes_per_s else 0.0
    return OpLine(
        arithmetic_s=factor * op.flops_per_sample / device.flops_per_s,
        fixed_s=traffic * op.fixed_bytes,
        per_sample_s=traffic * op.bytes_per_sample,
        launch_s=device.launch_s * op.num_calls,
    )


def op_s(op: Op, device: Device, num_samples: float, *, backward: bool = False) -> float:
    """Seconds of one pass of `op` over `num_samples` on a device whose speed is stated."""
    return line_s(*stated_line(op, device, backward=backward), num_samples)


def compute_s(graph: OpGraph, device: Device, num_samples: int) -> float:
    """Seconds of forward and backward over the whole model."""
    return sum(op_s(op, device, num_samples) + op_s(op, device, num_samples, backward=True) for op in graph.ops)


def weight_share(op: Op) -> float:
    """The share of an op's backward pass that computes gradients of weights: those of inputs multiply matrices of the same
    sizes, so each takes half where the op has weights.
    """
    return 0.5 if op.param_bytes > 0 else 0.0
