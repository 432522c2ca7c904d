"""Memory of the device that a trial runs on: how much is free, what means that it has ended, giving back what a trial has used."""

from __future__ import annotations

import gc
import traceback

import psutil
import torch

from autotune.runtime.device import DeviceHandle

_SHARE = 0.5
"""Of the free memory, what models that are held at once may take: activations and buffers need the rest."""
_COPIES = 5
"""Parameters, gradients, two optimizer moments and communication buffers, per parameter byte."""
_MOST_CAUSES = 20
_MESSAGES = ("out of memory", "can't allocate memory", "OUT_OF_DEVICE_MEMORY", "OUT_OF_HOST_MEMORY", "ALLOC_FAILED")
"""Of libraries below torch that raise a plain RuntimeError: CUDA, HIP, cuBLAS, cuDNN, Level Zero, torch's CPU allocator."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that the device, or the host, has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES)


def has_own_memory(device: DeviceHandle) -> bool:
    """Whether the device raises an error where its memory ends; ranks on a CPU share that of their host, which is metered."""
    return device.is_accelerator


def give_memory_back(device: DeviceHandle, error: BaseException | None = None) -> None:
    """After a trial: drop its garbage, then the device's cached blocks. The frames of `error` would hold its tensors."""
    for _ in range(_MOST_CAUSES):
        if error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
    gc.collect()
    device.release_memory()


def models_at_once(param_bytes: int, device: DeviceHandle, *, ranks_on_host: int) -> int:
    """How many models a rank may hold at once with gradients and optimizer state, at least one."""
    free_bytes = device.free_bytes()
    if free_bytes is None:
        free_bytes = psutil.virtual_memory().available // max(ranks_on_host, 1)
    return max(1, int(_SHARE * free_bytes / max(_COPIES * param_bytes, 1)))
