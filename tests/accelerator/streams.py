"""Stream, Event and the stream context, as torch.cuda's; and what the autograd engine calls for its own events.

Streams and events may be used by any thread; the current stream is per thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tests.accelerator import timeline
from tests.accelerator.counts import counts
from tests.accelerator.devices import MAX_DEVICES, count
from tests.accelerator.native import Native
from tests.accelerator.timeline import Line, Point

NAME = "fgpu"
Place = torch.device | int | str | None

_points: dict[int, Point] = {}
_handles = itertools.count(1)


def _record(device: int, number: int) -> int:
    handle = next(_handles)
    _points[handle] = timeline.line(device, number).point()
    return handle


def _query_stream(device: int, number: int) -> int:
    return int(timeline.line(device, number).point().passed())


def _synchronize_event(handle: int) -> None:
    counts.host_sync("Event.synchronize")
    _points[handle].synchronize()


def _synchronize_stream(device: int, number: int) -> None:
    counts.host_sync("Stream.synchronize")
    timeline.line(device, number).point().synchronize()


def _synchronize_device(index: int) -> None:
    counts.host_sync("synchronize")
    for line in timeline.lines_of(index):
        line.point().synchronize()


native = Native(
    MAX_DEVICES,
    {
        "record": _record,
        "block": lambda handle, device, number: timeline.line(device, number).wait(_points[handle]),
        "destroy": lambda handle: _points.pop(handle, None) and None,
        "query": lambda handle: int(_points[handle].passed()),
        "synchronize": _synchronize_event,
        "new_stream": lambda device, _priority: timeline.new_line(device).key[1],
        "query_stream": _query_stream,
        "synchronize_stream": _synchronize_stream,
        "synchronize_device": _synchronize_device,
    },
)
"""The C++ side: current device and stream of this thread. An error in a callback is printed and not raised."""


def index_of(device: Place = None) -> int:
    """The index of a device; the current one if it is not said."""
    if isinstance(device, int):
        return device
    if device is None:
        return native.device()
    device = torch.device(device)
    if device.type != NAME:
        raise ValueError(f"expected a {NAME} device, got {device}")
    return native.device() if device.index is None else device.index


def valid_index(device: Place = None) -> int:
    index = index_of(device)
    if not 0 <= index < count():
        raise RuntimeError(f"{NAME} error: invalid device ordinal {index}, there are {count()} devices")
    return index


def current_line(device: int) -> Line:
    """The stream on which this thread launches on a device."""
    return timeline.line(device, native.stream(device))


class Event:
    """A place on a stream, set by `record`."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timing = enable_timing
        self._point: Point | None = None

    def record(self, stream: Stream | None = None) -> None:
        self._point = (stream or current_stream()).line.point()

    def wait(self, stream: Stream | None = None) -> None:
        if self._point is not None:
            (stream or current_stream()).line.wait(self._point)

    def query(self) -> bool:
        return self._point is None or self._point.passed()

    def synchronize(self) -> None:
        counts.host_sync("Event.synchronize")
        if self._point is not None:
            self._point.synchronize()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to another, both of which the device has passed."""
        if not (self._timing and end_event._timing):
            raise ValueError("both events must be made with enable_timing=True")
        if self._point is None or end_event._point is None:
            raise ValueError("both events must be recorded before their elapsed time is asked for")
        if not (self.query() and end_event.query()):
            raise RuntimeError("device not ready: synchronize with the events before asking for their elapsed time")
        return (end_event._point.time_s - self._point.time_s) * 1e3


class Stream:
    """A queue of operations on a device."""

    def __init__(self, device: Place = None, priority: int = 0, *, line: Line | None = None) -> None:
        self.line = line or timeline.new_line(valid_index(device))
        self.priority = priority

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, self.line.key[0])

    @property
    def device_index(self) -> int:
        return self.line.key[0]

    @property
    def stream_id(self) -> int:
        return self.line.key[1]

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        self.line.wait(stream.line.point())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return self.line.point().passed()

    def synchronize(self) -> None:
        counts.host_sync("Stream.synchronize")
        self.line.point().synchronize()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.line is self.line

    def __hash__(self) -> int:
        return hash(self.line.key)

    def __repr__(self) -> str:
        return f"<{NAME}.Stream device={self.device} stream_id={self.stream_id}>"


def current_stream(device: Place = None) -> Stream:
    return Stream(line=current_line(index_of(device)))


def default_stream(device: Place = None) -> Stream:
    return Stream(line=timeline.line(index_of(device), 0))


def set_stream(stream: Stream | None) -> None:
    """Launch on this stream from now on, in this thread."""
    if stream is not None:
        native.set_device(stream.device_index)
        native.set_stream(*stream.line.key)


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Launch on a stream, in this thread; None changes nothing."""
    if stream is None:
        yield
        return
    device, number = native.device(), native.stream(stream.device_index)
    set_stream(stream)
    try:
        yield
    finally:
        native.set_stream(stream.device_index, number)
        native.set_device(device)


def synchronize(device: Place = None) -> None:
    """Wait until every stream of a device is done."""
    _synchronize_device(index_of(device))
