"""The device module: torch.cuda's names, memory, and what the environment configures."""

from __future__ import annotations

import copy
import gc
import io

import pytest
import torch
from torch import nn

import tests.accelerator.fgpu  # noqa: F401
from tests.accelerator import devices
from tests.accelerator.counts import counts

fgpu = torch.get_device_module("fgpu")


def test_devices_are_counted_named_and_chosen() -> None:
    assert fgpu.is_available()
    assert fgpu.device_count() == 4
    assert torch.accelerator.current_accelerator() == torch.device("fgpu")
    fgpu.set_device("fgpu:1")
    try:
        assert torch.empty(1, device="fgpu").device == torch.device("fgpu:1")
    finally:
        fgpu.set_device(0)
    found = fgpu.get_device_properties(1)
    assert (found.name, found.uuid) == (fgpu.get_device_name(1), "FGPU-00000000000000000000000000000001")
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        fgpu.set_device(4)


def test_torch_accelerator_speaks_to_the_device() -> None:
    torch.accelerator.set_device_index(2)
    try:
        assert fgpu.current_device() == 2
        stream, event = torch.Stream(device="fgpu"), torch.Event(device="fgpu")
        with fgpu.stream(fgpu.Stream()):
            assert torch.accelerator.current_stream().stream_id == fgpu.current_stream().stream_id
        stream.record_event(event)
        event.synchronize()
        torch.accelerator.synchronize()
        assert event.query()
        assert stream.query()
    finally:
        fgpu.set_device(0)
    assert {kind for kind, _ in counts.host_syncs()} == {"Event.synchronize", "synchronize"}


def test_without_devices_there_is_no_accelerator() -> None:
    devices.set_count(0)
    assert not fgpu.is_available()
    assert not torch.accelerator.is_available()
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.empty(1, device="fgpu")


def test_memory_is_that_of_tensors_that_live() -> None:
    gc.collect()
    before = fgpu.memory_allocated(3)
    fgpu.reset_peak_memory_stats(3)
    tensor = torch.zeros(1000, device="fgpu:3")
    view, doubled = tensor[:10], tensor * 2
    assert fgpu.memory_allocated(3) - before == 8000
    del tensor, doubled
    assert fgpu.memory_allocated(3) - before == 4000, "the view holds it"
    del view
    assert fgpu.memory_allocated(3) == before
    assert fgpu.max_memory_allocated(3) - before == 8000
    free, total = fgpu.mem_get_info(3)
    assert free == total - before


def test_a_full_device_is_out_of_memory() -> None:
    devices.configure(3, memory_bytes=1 << 20)
    kept = torch.zeros(1 << 17, device="fgpu:3")
    with pytest.raises(torch.OutOfMemoryError, match="fgpu:3 out of memory"):
        torch.cat([kept, kept])


def test_the_environment_configures_devices_by_rank(monkeypatch) -> None:
    monkeypatch.setenv("FGPU_COUNT", "2")
    monkeypatch.setenv("FGPU_SLOWNESS", "1,3")
    for name in devices.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    devices.restore()
    assert fgpu.device_count() == 2
    assert [device.slowness for device in devices.all_devices[:3]] == [1.0, 3.0, 1.0], "by index of the device"
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    devices.restore()
    assert [device.slowness for device in devices.all_devices[:3]] == [3.0, 3.0, 3.0], "by rank"


def test_parameters_stay_the_same_objects_when_a_module_moves() -> None:
    module = nn.Linear(2, 2)
    before = list(map(id, module.parameters()))
    assert list(map(id, module.to("fgpu").parameters())) == before
    assert all(parameter.device.type == "fgpu" for parameter in module.parameters())


def test_modules_are_copied_and_state_is_saved() -> None:
    module = nn.Linear(2, 2).to("fgpu:1")
    copied = copy.deepcopy(module)
    assert copied.weight.device == torch.device("fgpu:1")
    assert isinstance(copied.weight, nn.Parameter)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    with torch.no_grad():
        copied.weight.zero_()
    copied.load_state_dict(loaded)
    assert torch.equal(copied.weight.cpu(), module.weight.cpu())


def test_parameters_may_be_views_of_one_buffer() -> None:
    module = nn.Linear(2, 2, bias=False).to("fgpu")
    buffer = torch.arange(4.0, device="fgpu")
    module.weight.data = buffer.view(2, 2)
    buffer.add_(1)
    assert module.weight.cpu().flatten().tolist() == [1, 2, 3, 4]
    module(torch.ones(1, 2, device="fgpu")).sum().backward()
    assert module.weight.grad is not None
    module.weight.data.add_(module.weight.grad)
    assert buffer.cpu().tolist() == [2, 3, 4, 5]
    before = module.weight._version
    module.weight.data.add_(1)
    assert module.weight._version == before, "as with every tensor, data has a version of its own"


def test_dropout_draws_what_the_cpu_draws() -> None:
    def dropped(device: str) -> torch.Tensor:
        torch.manual_seed(1)
        given = torch.randn(500).to(device).requires_grad_()
        nn.functional.dropout(given, 0.15).square().sum().backward()
        assert given.grad is not None
        return given.grad.cpu()

    assert torch.equal(dropped("fgpu"), dropped("cpu"))
