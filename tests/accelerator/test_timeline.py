"""Streams, events and the device's clock, which runs behind the host.

The host's clock is one that stands still except where the host waits, so that times are exact.
"""

from __future__ import annotations

import threading
import time

import pytest
import torch

import tests.accelerator.fgpu  # noqa: F401
from tests.accelerator import devices, timeline

fgpu = torch.get_device_module("fgpu")
STEP_S = 0.5
FLOPS = 2 * 64**3
"""Of a product of the matrices below."""


class StandingHost(timeline.Host):
    """Time passes only where the host waits."""

    def __init__(self) -> None:
        self.now_s = 1e6

    def now(self) -> float:
        return self.now_s

    def sleep_until(self, when_s: float) -> None:
        self.now_s = max(self.now_s, when_s)


@pytest.fixture
def host(monkeypatch):
    standing = StandingHost()
    monkeypatch.setattr(timeline, "host", standing)
    return standing


@pytest.fixture
def waited_s(host):
    """How long the host has waited since it last asked."""
    last = [host.now()]

    def ask() -> float:
        before, last[0] = last[0], host.now()
        return last[0] - before

    return ask


def slow() -> torch.Tensor:
    """A tensor on a device where one operation on it takes STEP_S."""
    devices.configure(0, launch_s=STEP_S, bytes_per_s=1e30)
    return torch.empty(4, device="fgpu:0")


def device_s(index: int, steps: int = 4) -> float:
    """Time on the device of some matrix products."""
    tensor = torch.empty(64, 64, device=f"fgpu:{index}")
    with fgpu.device(index):
        start, end = fgpu.Event(enable_timing=True), fgpu.Event(enable_timing=True)
        start.record()
        for _ in range(steps):
            tensor @ tensor
        end.record()
        end.synchronize()
    return start.elapsed_time(end) / 1e3


def test_the_host_runs_ahead_of_the_device(waited_s) -> None:
    tensor = slow()
    for _ in range(4):
        tensor.add_(1)
    assert waited_s() == 0
    fgpu.synchronize()
    assert waited_s() == pytest.approx(4 * STEP_S)
    fgpu.synchronize()
    assert waited_s() == 0


def test_the_host_really_waits() -> None:
    tensor = slow()
    start = time.monotonic()
    tensor.add_(1)
    fgpu.synchronize()
    assert time.monotonic() - start >= STEP_S


def test_a_device_three_times_slower_takes_three_times_as_long_and_is_launched_as_fast(host) -> None:
    for index, slowness in ((0, 1.0), (1, 3.0)):
        devices.configure(index, flops_per_s=FLOPS / STEP_S, bytes_per_s=1e30, launch_s=0, slowness=slowness)
    assert device_s(0) == pytest.approx(4 * STEP_S)
    assert device_s(1) == pytest.approx(3 * 4 * STEP_S)
    before_s = host.now()
    for index in (0, 1):
        tensor = torch.empty(64, 64, device=f"fgpu:{index}")
        tensor @ tensor
    assert host.now() == before_s


def test_the_speed_changes_while_the_device_runs(host) -> None:
    devices.configure(0, flops_per_s=FLOPS / STEP_S, bytes_per_s=1e30, launch_s=0)
    before_s = device_s(0)
    devices.configure(0, slowness=2.0)
    assert device_s(0) == pytest.approx(2 * before_s)


def test_bytes_take_time_where_nothing_is_multiplied(host) -> None:
    devices.configure(0, bytes_per_s=48 / STEP_S, launch_s=0)
    tensor, start, end = torch.empty(4, device="fgpu"), fgpu.Event(True), fgpu.Event(True)
    start.record()
    tensor + tensor
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) == pytest.approx(1e3 * STEP_S), "two tensors of 16 bytes read, one written"


def test_an_event_is_passed_when_the_device_is_there(waited_s) -> None:
    tensor, event = slow(), fgpu.Event(enable_timing=True)
    assert event.query()
    tensor.add_(1)
    event.record()
    tensor.add_(1)
    assert not event.query()
    event.synchronize()
    assert waited_s() == pytest.approx(STEP_S)
    assert event.query()
    assert not fgpu.current_stream().query()


def test_elapsed_time_asks_for_timing_and_for_events_that_are_passed(host) -> None:
    tensor, start, end = slow(), fgpu.Event(True), fgpu.Event(enable_timing=True)
    with pytest.raises(ValueError, match="recorded"):
        start.elapsed_time(end)
    start.record()
    tensor.add_(1)
    end.record()
    with pytest.raises(RuntimeError, match="not ready"):
        start.elapsed_time(end)
    with pytest.raises(ValueError, match="enable_timing"):
        start.elapsed_time(fgpu.Event())


def test_streams_share_their_device(waited_s) -> None:
    """Whether or not one waits for the other, two kernels take twice as long as one."""
    tensor, side = slow(), fgpu.Stream()
    other = torch.empty(4, device="fgpu:0")
    fgpu.synchronize()
    for waits in (False, True):
        tensor.add_(1)
        if waits:
            side.wait_stream(fgpu.current_stream())
        with fgpu.stream(side):
            other.add_(1)
        waited_s()
        fgpu.synchronize()
        assert waited_s() == pytest.approx(2 * STEP_S)


def test_copies_in_both_directions_run_beside_kernels(waited_s) -> None:
    tensor = slow()
    there, back = torch.empty(4, device="fgpu:0"), torch.empty(4, device="fgpu:0")
    pinned = [torch.zeros(4).pin_memory() for _ in range(2)]
    fgpu.synchronize()
    waited_s()
    tensor.add_(1)
    with fgpu.stream(fgpu.Stream()):
        there.copy_(pinned[0], non_blocking=True)
    with fgpu.stream(fgpu.Stream()):
        pinned[1].copy_(back, non_blocking=True)
    fgpu.synchronize()
    assert waited_s() == pytest.approx(STEP_S)


def test_a_kernel_runs_while_one_that_was_launched_before_it_waits(waited_s) -> None:
    """And is interrupted when that one may run: 2 steps of it around 1 of the other, which waits for 1."""
    devices.configure(1, launch_s=STEP_S)
    tensor, waiting, side = slow(), torch.empty(4, device="fgpu:0"), fgpu.Stream()
    with fgpu.device(1):
        elsewhere = torch.empty(4, device="fgpu:1")
        elsewhere.add_(1)
        side.wait_event(fgpu.current_stream().record_event())
    with fgpu.stream(side):
        waiting.add_(1)
    devices.configure(0, launch_s=2 * STEP_S)
    tensor.add_(1)
    waited_s()
    side.synchronize()
    assert waited_s() == pytest.approx(2 * STEP_S)
    fgpu.synchronize()
    assert waited_s() == pytest.approx(STEP_S)


def test_waiting_for_an_event_on_a_stream_does_not_make_the_host_wait(waited_s) -> None:
    tensor, side = slow(), fgpu.Stream()
    tensor.add_(1)
    side.wait_event(fgpu.current_stream().record_event())
    assert waited_s() == 0
    side.synchronize()
    assert waited_s() == pytest.approx(STEP_S)


def test_a_value_that_the_host_reads_waits_for_the_device(waited_s) -> None:
    tensor = slow()
    tensor.zero_()
    tensor.sum().item()
    assert waited_s() == pytest.approx(2 * STEP_S)


def test_device_and_stream_are_per_thread() -> None:
    seen = {}

    def other_thread() -> None:
        seen["device"], seen["stream"] = fgpu.current_device(), fgpu.current_stream()

    fgpu.set_device(2)
    try:
        with fgpu.stream(fgpu.Stream()):
            thread = threading.Thread(target=other_thread)
            thread.start()
            thread.join()
            assert fgpu.current_stream() != fgpu.default_stream()
    finally:
        fgpu.set_device(0)
    assert seen["device"] == 0
    assert seen["stream"] == fgpu.default_stream(0)
