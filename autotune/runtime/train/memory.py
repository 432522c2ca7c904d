"""Device memory by accounting: parameters, gradients, optimizer state, buffers, saved activations."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from autotune.workloads.cluster import Device
from autotune.workloads.errors import InfeasiblePlanError
from autotune.workloads.quantity import format_bytes


def static_bytes(model: nn.Module, optimizer: Optimizer, *, buffer_bytes: int) -> int:
    """Bytes held between steps. `buffer_bytes`: communication buffers in addition to the gradients."""
    tensors = [*model.parameters(), *model.buffers()]
    gradients = [p for p in model.parameters() if p.requires_grad]
    state = [value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in (*tensors, *gradients, *state)) + buffer_bytes


def check_memory(used_bytes: int, device: Device, rank: int, num_samples: int) -> None:
    """Raise InfeasiblePlanError where the device cannot hold `used_bytes`."""
    if device.memory_bytes is not None and used_bytes > device.memory_bytes:
        raise InfeasiblePlanError(
            f"rank {rank} needs {format_bytes(used_bytes)} for {num_samples} samples but device {device.name!r} has "
            f"{format_bytes(device.memory_bytes)}"
        )


def sample_cap(static: float, per_sample: float, device: Device, global_batch: int) -> int:
    """The number of samples that fit beside the static memory."""
    if device.memory_bytes is None or per_sample <= 0:
        return global_batch
    return max(0, min(global_batch, int((device.memory_bytes - static) / per_sample)))
