"""Copies between host and device: what waits, what arrives late, and tensors of different devices in one operation."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import tests.accelerator.fgpu  # noqa: F401
from tests.accelerator import devices, races
from tests.accelerator.counts import counts

fgpu = torch.get_device_module("fgpu")


def test_waits_of_the_host_are_counted_by_kind_and_thread() -> None:
    tensor = torch.ones(4, device="fgpu")
    counts.reset()
    tensor.sum().item()
    assert bool(tensor[0] > 0)
    tensor.nonzero()
    tensor.masked_select(tensor > 0)
    tensor[tensor > 0]
    tensor.cpu()
    torch.ones(4).to("fgpu")
    fgpu.synchronize()
    fgpu.current_stream().synchronize()
    thread = threading.Thread(target=tensor.cpu, name="reader")
    thread.start()
    thread.join()
    main = {kind: number for (kind, name), number in counts.host_syncs().items() if name == "MainThread"}
    copies = {"copy to host": 1, "copy to device": 1}
    waits = {"synchronize": 1, "Stream.synchronize": 1}
    assert main == {"item": 2, "nonzero": 2, "masked_select": 1, **copies, **waits}
    assert counts.host_syncs()["copy to host", "reader"] == 1
    counts.reset()
    assert not counts.host_syncs()


def test_tensors_of_different_devices_are_refused_in_one_operation() -> None:
    here, there, cpu = torch.ones(2, device="fgpu:0"), torch.ones(2, device="fgpu:1"), torch.ones(2)
    for other in (there, cpu):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            here + other
    assert (here * torch.tensor(2.0)).tolist() == [2, 2]
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu"):
        here.numpy()
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu"):
        np.asarray(here)


def test_copies_between_devices_and_types() -> None:
    here = torch.arange(3, device="fgpu:0")
    there = here.to("fgpu:1", torch.float64)
    assert there.device == torch.device("fgpu:1")
    assert there.dtype == torch.float64
    assert there.tolist() == [0, 1, 2]
    there.copy_(here + 1)
    assert there.cpu().tolist() == [1, 2, 3]


def test_a_copy_to_pinned_memory_arrives_when_the_host_has_waited() -> None:
    pinned, tensor = torch.zeros(3).pin_memory(), torch.ones(3, device="fgpu")
    assert pinned.is_pinned()
    counts.reset()
    pinned.copy_(tensor, non_blocking=True)
    event = fgpu.current_stream().record_event()
    assert not counts.host_syncs()
    assert pinned.isnan().all(), "the host reads before it has waited"
    event.synchronize()
    assert pinned.tolist() == [1, 1, 1]
    late = tensor.to("cpu", non_blocking=True)
    assert late.isnan().all()
    fgpu.synchronize()
    assert late.tolist() == [1, 1, 1]


def test_a_device_reads_from_pinned_memory_what_it_has_waited_for() -> None:
    pinned, tensor = torch.zeros(3).pin_memory(), torch.ones(3, device="fgpu:0")
    pinned.copy_(tensor, non_blocking=True)
    assert torch.empty(3, device="fgpu:0").copy_(pinned, non_blocking=True).tolist() == [1, 1, 1]
    pinned.copy_(tensor + 1, non_blocking=True)
    with pytest.raises(
        races.RaceError, match="copy to device on stream 0 of fgpu:1 reads the memory that copy to host"
    ):
        torch.empty(3, device="fgpu:1").copy_(pinned, non_blocking=True)


def test_pinned_memory_is_not_overwritten_before_the_copy_from_it_is_done() -> None:
    devices.configure(0, launch_s=0.01)
    pinned, tensor = torch.zeros(3).pin_memory(), torch.empty(3, device="fgpu")
    tensor.copy_(pinned, non_blocking=True)
    fgpu.synchronize()
    pinned.fill_(1)
    tensor.copy_(pinned, non_blocking=True)
    pinned.fill_(2)
    with pytest.raises(races.RaceError, match="pinned memory was overwritten"):
        fgpu.synchronize()
