"""Streams and events on the time line of a fake device, and which operation is known to come before which.

The arithmetic of an operation is done when it is launched. On the time line it begins when its stream is free, not
before the launch, and takes what the device's speed says, so the host runs ahead of the device. Waiting is real: the
host sleeps until the device's time has come. Streams share their device: it has one engine that computes and one for
copies in each direction.

Order is a vector clock per stream. An event carries the clock of its stream to the streams that wait for it; a host
that has waited carries it to every later operation of the process.

An arrival is data that comes from elsewhere (another rank): the stream that waits for one cannot say when it is free.
An operation launched on such a stream blocks the host until the data is there, which no real device does; these waits
are counted apart. A delivery is a copy to pinned host memory, which the host sees only after it has synchronised.

Any thread may call; `LOCK` guards what is written, and is not held while waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from tests.accelerator.counts import counts

LOCK = threading.RLock()
Key = tuple[int, int]
Clock = dict[Key, int]
COMPUTE, TO_DEVICE, TO_HOST = "compute", "copies to the device", "copies to the host"
"""Work for which a device has an engine each."""


class Arrival(Protocol):
    """Data that comes from another rank."""

    completed: bool
    """Whether it is in its place."""

    def done(self) -> bool:
        """Whether it is there, without waiting."""

    def complete(self) -> float:
        """Wait for it and put it in its place; the time at which it was there."""


class Delivery:
    """A copy to pinned host memory, or from it: settled when the host has waited for it."""

    def __init__(self, clock: Clock, settle: Callable[[], object], keeps: object = None) -> None:
        self.clock, self._keeps = dict(clock), keeps
        self._settle: Callable[[], object] | None = settle

    def settle(self) -> None:
        settle, self._settle, self._keeps = self._settle, None, None
        if settle is not None:
            settle()


host_clock: Clock = {}
"""What the host has waited for."""
deliveries: list[Delivery] = []
"""Copies between pinned memory and devices that the host has not waited for."""


def merge(into: Clock, other: Clock) -> None:
    for key, number in other.items():
        if into.get(key, 0) < number:
            into[key] = number


def covers(clock: Clock, other: Clock) -> bool:
    return all(clock.get(key, 0) >= number for key, number in other.items())


class Host:
    """The host's clock, which the devices follow; tests may put another in its place."""

    def now(self) -> float:
        return time.monotonic()

    def sleep_until(self, when_s: float) -> None:
        while (left := when_s - self.now()) > 0:
            time.sleep(left)


host = Host()


def _settled(delivery: Delivery) -> Exception | None:
    try:
        delivery.settle()
    except RuntimeError as error:
        return error
    return None


class Point:
    """A place on the time line: when, after which operations, after which arrivals."""

    def __init__(self, time_s: float, clock: Clock, pending: Iterable[Arrival]) -> None:
        self.time_s, self.clock, self.pending = time_s, dict(clock), list(pending)

    def passed(self) -> bool:
        """Whether the device is past it; if so, the host knows."""
        if not all(arrival.done() for arrival in self.pending):
            return False
        self.resolve()
        if host.now() < self.time_s:
            return False
        self._host_knows()
        return True

    def resolve(self) -> None:
        for arrival in list(self.pending):
            self.time_s = max(self.time_s, arrival.complete())
            if arrival in self.pending:
                self.pending.remove(arrival)

    def synchronize(self) -> None:
        self.resolve()
        host.sleep_until(self.time_s)
        self._host_knows()

    def _host_knows(self) -> None:
        with LOCK:
            merge(host_clock, self.clock)
            settled = [delivery for delivery in deliveries if covers(host_clock, delivery.clock)]
            for delivery in settled:
                deliveries.remove(delivery)
        errors = [error for delivery in settled if (error := _settled(delivery))]
        if errors:
            raise errors[0]


class Engine:
    """What operations of all streams of a device share. Of two that could run at once, the one launched later runs only
    while the other does not; it is interrupted as often as need be. So together they take as long as one after the other.
    """

    def __init__(self) -> None:
        self._busy: list[tuple[float, float]] = []
        """From and to, in order, apart from each other."""

    def run(self, start_s: float, duration_s: float) -> float:
        """Take this long, from `start_s` on, of the time that is left; when it ends."""
        now_s, end_s, left_s = host.now(), start_s, duration_s
        before: list[tuple[float, float]] = []
        after: list[tuple[float, float]] = []
        for from_s, to_s in self._busy:
            if to_s <= now_s:
                continue
            if to_s < start_s:
                before.append((from_s, to_s))
            elif from_s - end_s >= left_s:
                after.append((from_s, to_s))
            else:
                left_s -= max(from_s - end_s, 0.0)
                start_s, end_s = min(start_s, from_s), max(end_s, to_s)
        self._busy = [*before, (start_s, end_s + left_s), *after]
        return end_s + left_s


class Line:
    """One stream of a device: operations run one after the other."""

    def __init__(self, device: int, number: int) -> None:
        self.key: Key = (device, number)
        self.ready_s = 0.0
        self.clock: Clock = {}
        self.pending: list[Arrival] = []

    def __str__(self) -> str:
        return f"stream {self.key[1]} of fgpu:{self.key[0]}"

    def launch(self, duration_s: float, work: str = COMPUTE) -> float:
        """Queue an operation on the engine for such work; the time of its end."""
        if self.pending:
            self.resolve()
        with LOCK:
            merge(self.clock, host_clock)
            self.clock[self.key] = self.clock.get(self.key, 0) + 1
            engine = _engines.setdefault((self.key[0], work), Engine())
            self.ready_s = engine.run(max(self.ready_s, host.now()), duration_s)
            return self.ready_s

    def resolve(self) -> None:
        """Wait, as only this fake does, until what the stream waits for has arrived."""
        for arrival in list(self.pending):
            if not arrival.done():
                counts.emulation_wait()
            end_s = arrival.complete()
            with LOCK:
                self.ready_s = max(self.ready_s, end_s)
                if arrival in self.pending:
                    self.pending.remove(arrival)

    def point(self) -> Point:
        """Where the stream is now: after all that is queued, and not before it was asked."""
        with LOCK:
            return Point(max(self.ready_s, host.now()), self.clock, self.pending)

    def wait(self, point: Point) -> None:
        """Later operations of this stream begin after the point."""
        with LOCK:
            self.ready_s = max(self.ready_s, point.time_s)
            merge(self.clock, point.clock)
            known = [*self.pending, *(arrival for arrival in point.pending if arrival not in self.pending)]
            self.pending = [arrival for arrival in known if not arrival.completed]
            times = [arrival.complete() for arrival in known if arrival.completed]
            self.ready_s = max([self.ready_s, *times])


_lines: dict[Key, Line] = {}
_last_number: dict[int, int] = {}
_engines: dict[tuple[int, str], Engine] = {}


def line(device: int, number: int) -> Line:
    with LOCK:
        if (device, number) not in _lines:
            _lines[device, number] = Line(device, number)
        return _lines[device, number]


def clock_of(key: Key) -> Clock:
    """What a stream comes after. Takes no lock: destructors call it."""
    found = _lines.get(key)
    return found.clock if found else {}


def new_line(device: int) -> Line:
    with LOCK:
        number = _last_number[device] = _last_number.get(device, 0) + 1
        return line(device, number)


def lines_of(device: int) -> list[Line]:
    with LOCK:
        return [each for (index, _), each in _lines.items() if index == device]


def reset() -> None:
    """Everything that is queued counts as done: after a test that left a device waiting for ever."""
    with LOCK:
        deliveries.clear()
        _engines.clear()
        for each in _lines.values():
            each.pending.clear()
            each.ready_s = 0.0
            merge(host_clock, each.clock)
