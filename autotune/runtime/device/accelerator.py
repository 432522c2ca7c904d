"""An accelerator, by the module that torch has for its type: its streams, its clock and its memory."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from autotune.runtime.device.cpu import CPU, DeviceHandle, Mark, Stamp

_REFRESH_S = 10.0
"""Events report the time between two of them in single precision: the origin is renewed this often."""

_Awaited = tuple[Stamp, Callable[[], None], Callable[[Exception], None]]
"""What the device reaches, what is called then, and what is called with an error."""


class _DeviceMark(Mark):
    def __init__(self, handle: AcceleratorHandle) -> None:
        self._handle, self._event = handle, handle.new_event(timed=False)
        self._event.record(handle.current_stream())

    def wait(self) -> None:
        self._handle.current_stream().wait_event(self._event)

    def wait_on_host(self) -> None:
        self._event.synchronize()


class _DeviceStamp(Stamp):
    __slots__ = ("_event", "_origin", "_resolved_s")

    def __init__(self, handle: AcceleratorHandle) -> None:
        self._origin, self._event = handle.origin, handle.new_event(timed=True)
        self._event.record(handle.current_stream())
        self._resolved_s: float | None = None

    @property
    def is_reached(self) -> bool:
        return self._resolved_s is not None or bool(self._event.query())

    @property
    def seconds(self) -> float:
        if self._resolved_s is None:
            if not self._event.query():
                self._event.synchronize()
            self._resolved_s = self._origin.at_s + self._origin.event.elapsed_time(self._event) / 1e3
        return self._resolved_s


@dataclass(frozen=True, slots=True)
class _Origin:
    """An event, and the reading of the performance counter when the device reached it."""

    event: Any
    at_s: float


class AcceleratorHandle(DeviceHandle):
    """An accelerator. Threads: any thread may call any method; streams are current per thread, as in torch."""

    is_accelerator = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._module: Any = torch.get_device_module(device)
        self._origin: _Origin | None = None
        self._reached: queue.SimpleQueue[_Awaited] | None = None
        self._lock = threading.Lock()

    def bind(self) -> None:
        self._module.set_device(self.device)

    def synchronize(self) -> None:
        self._module.synchronize(self.device)

    def stamp(self) -> Stamp:
        return _DeviceStamp(self)

    def mark(self) -> Mark:
        return _DeviceMark(self)

    def when_reached(self, stamp: Stamp, call: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        with self._lock:
            if self._reached is None:
                self._reached = queue.SimpleQueue()
                threading.Thread(target=self._call_when_reached, name="autotune-reached", daemon=True).start()
        self._reached.put((stamp, call, failed))

    def new_stream(self) -> Any:
        return self._module.Stream(device=self.device)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        with self._module.stream(stream):
            yield

    def keep_for_stream(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if tensor.device == self.device:
                tensor.record_stream(self.current_stream())

    def pinned_like(self, tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=CPU.device).pin_memory()

    def to_device(self, tensor: Tensor) -> Tensor:
        if tensor.device == self.device:
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def reset_peak(self) -> None:
        self._module.reset_peak_memory_stats(self.device)

    def peak_bytes(self, metered_bytes: int) -> int:  # noqa: ARG002 - the device counts better
        return int(self._module.max_memory_allocated(self.device))

    def release_memory(self) -> None:
        self._module.empty_cache()

    def free_bytes(self) -> int | None:
        return int(self._module.mem_get_info(self.device)[0])

    @property
    def hardware(self) -> str:
        return str(self._module.get_device_name(self.device))

    def current_stream(self) -> Any:
        return self._module.current_stream(self.device)

    def new_event(self, *, timed: bool) -> Any:
        """An event for which a thread of the host waits without spinning, where the driver can."""
        if _has_blocking_events(self.device.type):
            return self._module.Event(enable_timing=timed, blocking=True)
        return self._module.Event(enable_timing=timed)

    @property
    def origin(self) -> _Origin:
        """Where stamps count from."""
        if self._origin is None:
            self.renew_clock()
        assert self._origin is not None
        return self._origin

    def renew_clock(self) -> None:
        if self._origin is not None and time.perf_counter() - self._origin.at_s < _REFRESH_S:
            return
        event = self.new_event(timed=True)
        event.record(self.current_stream())
        event.synchronize()
        self._origin = _Origin(event, time.perf_counter())

    def _call_when_reached(self) -> None:
        self.bind()
        assert self._reached is not None
        while True:
            stamp, call, failed = self._reached.get()
            try:
                _ = stamp.seconds
                call()
            except Exception as error:  # noqa: BLE001 - the thread that trains raises it
                failed(error)
            del stamp, call, failed


@cache
def _has_blocking_events(kind: str) -> bool:
    try:
        torch.get_device_module(kind).Event(enable_timing=False, blocking=True)
    except TypeError:
        return False
    return True
