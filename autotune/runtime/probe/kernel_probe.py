"""A known kernel, timed three ways: by our stamps, by the device's own events, and by the host around a synchronised loop.

The host's clock is the reference: it cannot know when the device begins, but over a loop of a third of a second the three
must agree. Values are small integers, so the product of the two matrices is known exactly.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autotune.runtime.device import AcceleratorHandle, DeviceHandle

_LOOP_S, _MOST_LOOPS = 0.3, 1000
_LONG_ENOUGH_S = 1e-3
_SMALLEST, _LARGEST = 256, 4096
_ROUNDS = 3
"""The round in which the clocks agree best counts: a host that is interrupted makes them differ."""
_PERIOD = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelFacts:
    """What one rank has measured: of a loop of `count` products of two matrices of `size` x `size` in float32."""

    size: int
    count: int
    num_wrong: int
    host_s: float
    """By the host's clock, from before the first launch until the device has finished."""
    stamps_s: float
    """By the stamps from which every figure of ours comes."""
    events_s: float | None
    """By the device's events; None for a CPU."""
    launch_s: float
    """How long the host took to launch them."""
    cpu_s: float
    """CPU time of this process."""

    @property
    def flops_per_s(self) -> float:
        return 2.0 * self.size**3 * self.count / max(self.host_s, 1e-9)

    @property
    def stamps_ratio(self) -> float:
        return self.stamps_s / max(self.host_s, 1e-9)

    @property
    def events_ratio(self) -> float | None:
        return None if self.events_s is None else self.events_s / max(self.host_s, 1e-9)

    @property
    def cores(self) -> float:
        """How many cores the process had on average."""
        return self.cpu_s / max(self.host_s, 1e-9)


def time_kernel(device: DeviceHandle) -> KernelFacts:
    """Takes about a second. Needs no other rank."""
    size, once_s = _choose_size(device)
    count = max(1, min(_MOST_LOOPS, int(_LOOP_S / once_s)))
    a, b, right = _matrices(device, size)
    num_wrong = int((torch.mm(a, b) != right).sum())
    rounds = [_round(device, a, b, size=size, count=count, num_wrong=num_wrong) for _ in range(_ROUNDS)]
    return min(rounds, key=lambda one: abs(one.stamps_ratio - 1.0))


def _choose_size(device: DeviceHandle) -> tuple[int, float]:
    """The smallest size whose product takes a millisecond, so that launching it is not what is timed."""
    size = _SMALLEST
    while True:
        a, b, _ = _matrices(device, size)
        torch.mm(a, b)
        device.synchronize()
        begun_s = time.perf_counter()
        torch.mm(a, b)
        device.synchronize()
        once_s = time.perf_counter() - begun_s
        if once_s >= _LONG_ENOUGH_S or size >= _LARGEST:
            return size, once_s
        size *= 2


def _matrices(device: DeviceHandle, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two matrices and their product: rows of the first repeat 0 to 4, columns of the second are constant."""
    row = torch.arange(size, dtype=torch.float32) % _PERIOD
    column = torch.arange(size, dtype=torch.float32) % (_PERIOD - 2)
    a, b = row.expand(size, size).contiguous(), column.expand(size, size).contiguous()
    right = (column * row.sum()).expand(size, size).contiguous()
    return a.to(device.device), b.to(device.device), right.to(device.device)


def _round(device: DeviceHandle, a: Tensor, b: Tensor, *, size: int, count: int, num_wrong: int) -> KernelFacts:  # noqa: PLR0913
    out = torch.empty_like(a)
    device.synchronize()
    device.renew_clock()
    cpu_s, host_s = time.process_time(), _reference()
    first, first_event = device.stamp(), _event(device)
    for _ in range(count):
        torch.mm(a, b, out=out)
    last, last_event = device.stamp(), _event(device)
    launched_s = _reference()
    device.synchronize()
    ended_s, ended_cpu_s = _reference(), time.process_time()
    return KernelFacts(
        size=size,
        count=count,
        num_wrong=num_wrong,
        host_s=ended_s - host_s,
        stamps_s=last.seconds - first.seconds,
        events_s=None if first_event is None else float(first_event.elapsed_time(last_event)) / 1e3,
        launch_s=launched_s - host_s,
        cpu_s=ended_cpu_s - cpu_s,
    )


def _event(device: DeviceHandle) -> Any:
    if not isinstance(device, AcceleratorHandle):
        return None
    event = device.new_event(timed=True)
    event.record(device.current_stream())
    return event


def _reference() -> float:
    """A clock that our stamps do not use, where there is one; it is not adjusted by NTP either."""
    raw = getattr(time, "CLOCK_MONOTONIC_RAW", None)
    return time.monotonic() if raw is None else time.clock_gettime(raw)
