"""Streams, events and the device's clock, which runs behind the host."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

import tests.accelerator.fgpu  # noqa: F401
from tests.accelerator import devices

fgpu = torch.get_device_module("fgpu")
STEP_S = 0.05


def slow(index: int = 0) -> torch.Tensor:
    """A tensor on a device where one operation on it takes STEP_S."""
    devices.configure(index, launch_s=STEP_S)
    return torch.empty(4, device=f"fgpu:{index}")


def elapsed_s(work: Any) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def timed(index: int, steps: int = 4) -> tuple[float, float]:
    """Time on the device and time of the host's launches."""
    tensor = torch.empty(256, 256, device=f"fgpu:{index}")
    with fgpu.device(index):
        start, end = fgpu.Event(enable_timing=True), fgpu.Event(enable_timing=True)
        start.record()
        host_s = elapsed_s(lambda: [tensor @ tensor for _ in range(steps)])
        end.record()
        end.synchronize()
    return start.elapsed_time(end) / 1e3, host_s


def test_the_host_runs_ahead_of_the_device() -> None:
    tensor = slow()
    assert elapsed_s(lambda: [tensor.add_(1) for _ in range(4)]) < 2 * STEP_S
    assert elapsed_s(fgpu.synchronize) > STEP_S
    assert elapsed_s(fgpu.synchronize) < STEP_S


def test_a_device_three_times_slower_takes_three_times_as_long_and_is_launched_as_fast() -> None:
    for index, slowness in ((0, 1.0), (1, 3.0)):
        devices.configure(index, flops_per_s=2 * 256**3 / 0.02, slowness=slowness)
    timed(0, 1)
    (fast_s, fast_host_s), (slow_s, slow_host_s) = timed(0), timed(1)
    assert slow_s / fast_s == pytest.approx(3.0, rel=0.05)
    assert fast_s == pytest.approx(0.08, rel=0.05)
    assert max(fast_host_s, slow_host_s) < fast_s


def test_the_speed_changes_while_the_device_runs() -> None:
    devices.configure(0, flops_per_s=2 * 256**3 / 0.01)
    before_s, _ = timed(0)
    devices.configure(0, slowness=2.0)
    assert timed(0)[0] / before_s == pytest.approx(2.0, rel=0.1)


def test_an_event_is_passed_when_the_device_is_there() -> None:
    tensor, event = slow(), fgpu.Event(enable_timing=True)
    assert event.query()
    tensor.add_(1)
    event.record()
    assert not event.query()
    assert elapsed_s(event.synchronize) > STEP_S / 2
    assert event.query()


def test_elapsed_time_asks_for_timing_and_for_events_that_are_passed() -> None:
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


def test_streams_run_beside_each_other_until_one_waits() -> None:
    tensor, side = slow(), fgpu.Stream()
    other = torch.empty(4, device="fgpu:0")
    fgpu.synchronize()
    tensor.add_(1)
    with fgpu.stream(side):
        other.add_(1)
    side.synchronize()
    both_s = elapsed_s(fgpu.synchronize)
    assert both_s < STEP_S
    tensor.add_(1)
    side.wait_stream(fgpu.current_stream())
    with fgpu.stream(side):
        other.add_(1)
    assert elapsed_s(side.synchronize) > 1.5 * STEP_S


def test_waiting_for_an_event_on_a_stream_does_not_make_the_host_wait() -> None:
    tensor, side = slow(), fgpu.Stream()
    tensor.add_(1)
    event = fgpu.current_stream().record_event()
    assert elapsed_s(lambda: side.wait_event(event)) < STEP_S / 2
    assert elapsed_s(side.synchronize) > STEP_S / 2


def test_a_value_that_the_host_reads_waits_for_the_device() -> None:
    tensor = slow()
    tensor.zero_()
    assert elapsed_s(tensor.sum().item) > STEP_S


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
