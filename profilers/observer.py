"""Observers of devices during a run: power, memory, clocks, load.

An observer reads one device; a sampler reads it a few times a second from a thread and stores the values as counters.
A metric that a device does not have, or loses in mid-run, is unavailable with the reason and never 0, because a zero
would enter sums and means as if it had been measured. No error of a driver propagates into the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from autotune.profilers.timeline import Counter
from autotune.workloads.errors import SpecError

Clock = Callable[[], float]
MOST_HZ = 1000
"""A higher rate would occupy a core; devices refresh their readings 10 to 100 times a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A metric of a device, and whether it is available."""

    name: str
    unit: str
    note: str = ""
    """How the value is derived, where that is not obvious."""
    reason: str = ""
    """Why there is no value (any more); "" while there is."""

    @property
    def available(self) -> bool:
        return not self.reason

    @property
    def availability(self) -> str:
        """For reports: "available", "available (note)" or "unavailable (reason)"."""
        if self.reason:
            return f"unavailable ({self.reason})"
        return f"available ({self.note})" if self.note else "available"


class Observer(Protocol):
    """One device. Opening it reads every metric once, so that its metrics are known before the run."""

    @property
    def name(self) -> str: ...

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Every metric, as of now: one that failed in mid-run is unavailable for good."""

    def sample(self) -> dict[str, float]:
        """Values of available metrics by name; one without a new value is left out."""

    def close(self) -> None:
        """Release the device; idempotent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Meter:
    """A metric and the function that reads it: in the metric's unit, None for "no new value", an error for "unavailable"."""

    name: str
    unit: str
    read: Callable[[], float | None]
    note: str = ""


class MeteredDevice:
    """An observer made of meters that fail independently."""

    def __init__(self, name: str, meters: Iterable[Meter], close: Callable[[], None] | None = None) -> None:
        self.name = name
        self._close = close
        self._live = {meter.name: meter for meter in meters}
        self._metrics = {
            meter.name: Metric(name=meter.name, unit=meter.unit, note=meter.note) for meter in self._live.values()
        }
        self.sample()  # the probe; also where counters start from

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return tuple(self._metrics.values())

    def sample(self) -> dict[str, float]:
        values = {}
        for name, meter in list(self._live.items()):
            try:
                value = meter.read()
            except Exception as error:  # noqa: BLE001 - an error of a driver affects this metric only
                del self._live[name]
                self._metrics[name] = dataclasses.replace(self._metrics[name], reason=describe(error))
            else:
                if value is not None:
                    values[name] = float(value)
        return values

    def close(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Unavailable:
    """The observer of a device that cannot be opened: every metric has the reason, and there are no samples."""

    name: str
    units: Mapping[str, str]
    """Units of the metrics that the device would have, by name."""
    reason: str

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return tuple(Metric(name=name, unit=unit, reason=self.reason) for name, unit in self.units.items())

    def sample(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


def describe(error: Exception) -> str:
    """An error as a reason for users; without errno's number, and never empty."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    return str(error) or type(error).__name__


class Rise:
    """The increase of a counter since it was first read, across its wraps.

    A counter that falls has wrapped or was reset, as by a driver that was loaded anew. It wrapped if that makes the
    rise since the last reading small, at most 1/8 of the range (of 32 bits of millijoules, what 700 W use in 12 minutes).
    A reset loses what was counted: that is an error, so that no total is silently too small.
    """

    def __init__(self, read: Callable[[], int], ranges: tuple[int, ...] = (2**32, 2**64)) -> None:
        self._read = read
        self._ranges = ranges
        self._last: int | None = None
        self._total = 0

    def __call__(self) -> int:
        raw = self._read()
        self._total += 0 if self._last is None else self._step(self._last, raw)
        self._last = raw
        return self._total

    def _step(self, last: int, raw: int) -> int:
        if raw >= last:
            return raw - last
        for size in self._ranges:
            if last < size and size - last + raw <= size // 8:
                return size - last + raw
        raise ValueError(f"the counter fell from {last} to {raw}: it was reset")


class Integral:
    """Energy from power, ∫ P dt by the trapezoid rule between readings; starts at 0."""

    def __init__(self, read: Callable[[], float], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._last: tuple[float, float] | None = None
        self._total = 0.0

    def __call__(self) -> float:
        moment_s, value = self._clock(), self._read()
        if self._last is not None:
            last_s, last_value = self._last
            self._total += (last_value + value) / 2 * (moment_s - last_s)
        self._last = (moment_s, value)
        return self._total


class Seldom:
    """A reading that is too expensive for every sample: taken with the probe, the first sample, and every n-th from there.

    In between there is no new value.
    """

    def __init__(self, read: Callable[[], float], every: int) -> None:
        self._read = read
        self._every = every
        self._left = 0
        self._is_probe = True

    def __call__(self) -> float | None:
        if self._is_probe:
            self._is_probe = False
            return self._read()
        self._left = (self._left or self._every) - 1
        return self._read() if self._left == self._every - 1 else None


class Sampler:
    """Samples an observer at a fixed rate from a thread, between `start` and `stop` or as a context manager.

    The first and last sample are at start and stop, so that a total covers the whole run. The thread is a daemon,
    because MPI's abort waits for others, and it is abandoned if a driver blocks it in a call.
    """

    def __init__(self, observer: Observer, *, rank: int, rate_hz: float = 10.0, clock: Clock = time.monotonic) -> None:
        if not 0 < rate_hz <= MOST_HZ:
            raise SpecError(f"a sampling rate of {rate_hz} Hz: use one above 0 and up to {MOST_HZ}, such as 10")
        self._observer = observer
        self._rank = rank
        self._period_s = 1 / rate_hz
        self._clock = clock
        self._metrics = observer.metrics
        self._points = {metric.name: (array("d"), array("d")) for metric in self._metrics}
        self._failure = ""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sample {observer.name}", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to sample; a sampler runs once."""
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Take a last sample, end the thread and close the observer; a driver that hangs is abandoned."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._failure = f"no answer for {timeout_s:g} s"
            return  # closing a device in the middle of a call may crash the process
        with contextlib.suppress(Exception):  # the samples are taken; a device that will not close changes nothing
            self._observer.close()

    def tick(self) -> bool:
        """Take one sample; the thread calls this. False when the device has no metric left to sample."""
        try:
            self._keep(self._clock(), self._observer.sample())
            self._metrics = self._observer.metrics
        except Exception as error:  # noqa: BLE001 - an observer that breaks must not end a training run
            self._failure = describe(error)
            return False
        return any(metric.available for metric in self._metrics)

    def _keep(self, moment_s: float, values: Mapping[str, float]) -> None:
        with self._lock:
            for name, value in values.items():
                moments, kept = self._points[name]
                moments.append(moment_s)
                kept.append(value)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of the observer; all unavailable after it failed or hung."""
        failure = self._failure
        return tuple(
            dataclasses.replace(metric, reason=failure) if failure and metric.available else metric
            for metric in self._metrics
        )

    def counters(self) -> tuple[Counter, ...]:
        """The samples so far. A metric without a value has no counter."""
        with self._lock:
            return tuple(
                Counter(rank=self._rank, name=metric.name, unit=metric.unit, points=tuple(zip(*points, strict=True)))
                for metric in self._metrics
                if len((points := self._points[metric.name])[0])
            )

    def _run(self) -> None:
        started_s = self._clock()
        stopping = False
        while self.tick() and not stopping:
            stopping = self._stopping.wait(pause_s(self._clock() - started_s, self._period_s))


def pause_s(elapsed_s: float, period_s: float) -> float:
    """Wait for the next sample. A slow device skips samples, and the thread always sleeps."""
    rest_s = period_s - elapsed_s % period_s
    return rest_s if rest_s > period_s / 4 else rest_s + period_s
