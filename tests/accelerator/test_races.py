"""Streams that use the same memory in no order are found."""

from __future__ import annotations

import pytest
import torch

import tests.accelerator.fgpu  # noqa: F401
from tests.accelerator import races

fgpu = torch.get_device_module("fgpu")


@pytest.fixture
def side():
    return fgpu.Stream()


@pytest.fixture
def tensor():
    made = torch.zeros(4, device="fgpu")
    fgpu.synchronize()
    return made


def test_reading_what_another_stream_writes(tensor, side) -> None:
    tensor.add_(1)
    with fgpu.stream(side), pytest.raises(races.RaceError) as caught:
        tensor * 2
    assert "aten.mul.Tensor on stream" in str(caught.value)
    assert "reads the memory that aten.add_.Tensor on stream 0 of fgpu:0 writes" in str(caught.value)


def test_writing_what_another_stream_reads(tensor, side) -> None:
    with fgpu.stream(side):
        kept = tensor * 2
    with pytest.raises(races.RaceError, match=r"writes the memory that aten.mul.Tensor on stream .* reads"):
        tensor.add_(1)
    assert kept is not None


def test_two_streams_read(tensor, side) -> None:
    with fgpu.stream(side):
        kept = tensor * 2
    other = tensor * 2
    fgpu.synchronize()
    assert torch.equal(kept.cpu(), other.cpu())


@pytest.mark.parametrize("how", ["event", "stream", "stream synchronized", "event synchronized", "device"])
def test_what_orders_two_streams(tensor, side, how) -> None:
    tensor.add_(1)
    event = fgpu.current_stream().record_event()
    {
        "event": lambda: side.wait_event(event),
        "stream": lambda: side.wait_stream(fgpu.current_stream()),
        "stream synchronized": fgpu.current_stream().synchronize,
        "event synchronized": event.synchronize,
        "device": fgpu.synchronize,
    }[how]()
    with fgpu.stream(side):
        tensor.mul_(2)


def test_an_event_orders_what_was_before_it_only(tensor, side) -> None:
    event = fgpu.current_stream().record_event()
    tensor.add_(1)
    side.wait_event(event)
    with fgpu.stream(side), pytest.raises(races.RaceError):
        tensor.mul_(2)


def test_views_share_the_memory(tensor, side) -> None:
    tensor[:3].add_(1)
    with fgpu.stream(side), pytest.raises(races.RaceError):
        tensor[2:].mul_(2)


def test_views_of_separate_parts_are_in_no_race(tensor, side) -> None:
    """Partitions of one fusion buffer are summed and updated on several streams."""
    tensor[:2].add_(1)
    with fgpu.stream(side):
        tensor[2:].mul_(2)
        tensor[2:].add_(1)
    fgpu.synchronize()
    assert tensor.tolist() == [1] * 4


def test_a_later_use_of_a_part_does_not_hide_an_earlier_one(tensor, side) -> None:
    tensor.add_(1)
    side.wait_stream(fgpu.current_stream())
    tensor[:2].add_(1)
    with fgpu.stream(side):
        tensor[2:].add_(1)
        with pytest.raises(races.RaceError):
            tensor.sum()


def test_the_detection_is_switched_off(tensor, side) -> None:
    races.enable(False)
    tensor.add_(1)
    with fgpu.stream(side):
        assert (tensor * 2).tolist() == [2] * 4


@pytest.mark.parametrize("recorded", [False, True])
def test_memory_freed_while_another_stream_uses_it(side, recorded) -> None:
    tensor = torch.zeros(4, device="fgpu")
    side.wait_stream(fgpu.current_stream())
    with fgpu.stream(side):
        kept = tensor * 2
    if recorded:
        tensor.record_stream(side)
    del tensor
    if recorded:
        torch.ones(4, device="fgpu")
    else:
        with pytest.raises(races.RaceError, match="was freed"):
            torch.ones(4, device="fgpu")
    assert kept is not None


def test_memory_freed_after_its_stream_has_waited(side) -> None:
    tensor = torch.zeros(4, device="fgpu")
    side.wait_stream(fgpu.current_stream())
    with fgpu.stream(side):
        kept = tensor * 2
    fgpu.current_stream().wait_stream(side)
    del tensor
    torch.ones(4, device="fgpu")
    assert kept is not None


def test_memory_recorded_for_a_stream_that_comes_after_the_use(side) -> None:
    """As with NCCL: a stream that waits for its stream is recorded, and not NCCL's own."""
    tensor, waits = torch.zeros(4, device="fgpu"), fgpu.Stream()
    side.wait_stream(fgpu.current_stream())
    with fgpu.stream(side):
        kept = tensor * 2
    waits.wait_stream(side)
    tensor.record_stream(waits)
    del tensor
    torch.ones(4, device="fgpu")
    assert kept is not None
