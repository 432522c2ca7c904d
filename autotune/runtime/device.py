"""Accelerators: no other module names torch's device modules or compares device types.

A `DeviceHandle` is what the rest of the runtime asks of the device of its tensors. The handle of the CPU does nothing and
costs next to nothing; that of an accelerator uses the module that torch has for its type (`torch.get_device_module`), which
is the same for NVIDIA and AMD ("cuda") and has the same names for Intel ("xpu").

An accelerator runs behind the host: a call returns when work is queued, not when it is done. Hence two things that the host
clock cannot give: a `Stamp`, the time at which the device reaches a point of the current stream, and a `Mark`, such a point
that another stream, or the host, waits for.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from autotune.runtime.launch.device_choice import VisibleDevices

_REFRESH_S = 10.0
"""Events report the time between two of them in single precision: the origin is renewed this often."""
_CPU = torch.device("cpu")


class Mark:
    """A point of a stream. On the CPU nothing runs behind the host: every point has been reached."""

    def wait(self) -> None:
        """Let the current stream of the calling thread wait for it."""

    def wait_on_host(self) -> None:
        """Block the calling thread until the device has reached it."""


NO_MARK = Mark()


class Stamp:
    """When a point of a stream was reached, on the performance counter."""

    __slots__ = ("_at_s",)

    def __init__(self, at_s: float) -> None:
        self._at_s = at_s

    @property
    def seconds(self) -> float:
        """Blocks until the device has reached the point."""
        return self._at_s

    @property
    def is_reached(self) -> bool:
        """Whether the device has reached the point."""
        return True


class DeviceHandle:
    """The CPU. Threads: any thread may call any method."""

    is_accelerator = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def bind(self) -> None:
        """Use this device in the calling thread."""

    def synchronize(self) -> None:
        """Block until the device has done everything that was queued."""

    def stamp(self) -> Stamp:
        """A stamp of this point of the current stream."""
        return Stamp(time.perf_counter())

    def mark(self) -> Mark:
        """A mark of this point of the current stream."""
        return NO_MARK

    def renew_clock(self) -> None:
        """Called between steps: an accelerator's clock is compared with the host's now and then."""

    def when_reached(self, stamp: Stamp, call: Callable[[], None]) -> None:  # noqa: ARG002 - on the CPU it has been
        """Call `call` once the device has reached `stamp`: here at once, on an accelerator from a thread of its own."""
        call()

    def new_stream(self) -> Any:
        """A stream beside the current one."""
        return None

    def on(self, stream: Any) -> AbstractContextManager[None]:  # noqa: ARG002 - the CPU has no streams
        """Queue work of the calling thread on this stream."""
        return nullcontext()

    def keep_for_stream(self, tensors: Iterable[Tensor]) -> None:
        """The current stream uses these tensors: their memory must not be reused before it has."""

    def pinned_like(self, tensor: Tensor) -> Tensor:
        """Memory of the host that the device copies to and from while the host goes on."""
        return torch.empty_like(tensor, device=_CPU)

    def to_device(self, tensor: Tensor) -> Tensor:
        """A copy on the device; the host does not wait for it."""
        return tensor.to(self.device)

    def reset_peak(self) -> None:
        """Begin to meter peak memory anew."""

    def peak_bytes(self, metered_bytes: int) -> int:
        """Peak memory since `reset_peak`: an accelerator's own count, on the CPU what we have metered."""
        return metered_bytes

    def release_memory(self) -> None:
        """Give memory that is not in use back to the driver."""

    def free_bytes(self) -> int | None:
        """Memory of the device that nothing holds; None for the CPU, whose memory is the host's."""
        return None

    @property
    def hardware(self) -> str:
        """The name of the hardware; empty for the CPU."""
        return ""


CPU = DeviceHandle(_CPU)


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
        self._reached: queue.SimpleQueue[tuple[Stamp, Callable[[], None]]] | None = None
        self._lock = threading.Lock()

    def bind(self) -> None:
        self._module.set_device(self.device)

    def synchronize(self) -> None:
        self._module.synchronize(self.device)

    def stamp(self) -> Stamp:
        return _DeviceStamp(self)

    def mark(self) -> Mark:
        return _DeviceMark(self)

    def when_reached(self, stamp: Stamp, call: Callable[[], None]) -> None:
        with self._lock:
            if self._reached is None:
                self._reached = queue.SimpleQueue()
                threading.Thread(target=self._call_when_reached, name="autotune-reached", daemon=True).start()
        self._reached.put((stamp, call))

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
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=_CPU).pin_memory()

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
            stamp, call = self._reached.get()
            with suppress(Exception):  # a device that has failed raises in the thread that trains as well
                _ = stamp.seconds
                call()
            del stamp, call


@cache
def handle(device: torch.device) -> DeviceHandle:
    """The handle of a device."""
    return CPU if device.type == "cpu" else AcceleratorHandle(device)


def handle_of(tensor: Tensor) -> DeviceHandle:
    """The handle of the device that holds a tensor."""
    return handle(tensor.device)


@cache
def accelerator_type() -> str:
    """The type of the accelerators of this process, as torch names it; empty: it has none."""
    for name in _known_types():
        module: Any = getattr(torch, name, None)
        if module is not None and module.is_available() and module.device_count():
            return name
    return ""


@cache
def visible() -> VisibleDevices:
    """The accelerators that this process can use."""
    kind = accelerator_type()
    if not kind:
        return VisibleDevices()
    module = torch.get_device_module(kind)
    indices = range(module.device_count())
    return VisibleDevices(
        type=kind,
        names=tuple(str(module.get_device_name(index)) for index in indices),
        uuids=tuple(str(getattr(module.get_device_properties(index), "uuid", "")) for index in indices),
    )


def take(index: int | None) -> DeviceHandle:
    """The accelerator with this index, which the calling thread uses from here on; None: the CPU."""
    if index is None:
        return CPU
    chosen = handle(torch.device(accelerator_type(), index))
    chosen.bind()
    return chosen


def is_autocast_on() -> bool:
    """Whether autocast is on in this thread for any device."""
    return any(torch.is_autocast_enabled(kind) for kind in _autocast_types())


def is_amd() -> bool:
    """Whether this torch is built for AMD, whose devices it names as NVIDIA's."""
    return torch.version.hip is not None


def bus_address(device: torch.device) -> str:
    """Where the accelerator is on the PCI bus, as the kernel writes it."""
    found: Any = torch.get_device_module(device).get_device_properties(device)
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def uuid(device: torch.device) -> str:
    """The UUID of an accelerator."""
    found: Any = torch.get_device_module(device).get_device_properties(device)
    return str(found.uuid)


def total_bytes(device: torch.device) -> int:
    """The memory of an accelerator."""
    found: Any = torch.get_device_module(device).get_device_properties(device)
    return int(found.total_memory)


def _known_types() -> tuple[str, ...]:
    """CUDA and ROCm, Intel, and the type that an extension of torch has registered."""
    return ("cuda", "xpu", torch._C._get_privateuse1_backend_name())


@cache
def _autocast_types() -> tuple[str, ...]:
    return ("cpu", *filter(None, (accelerator_type(),)))


@cache
def _has_blocking_events(kind: str) -> bool:
    try:
        torch.get_device_module(kind).Event(enable_timing=False, blocking=True)
    except TypeError:
        return False
    return True
