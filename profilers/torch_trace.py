"""Ranges and the outermost ops of every thread in a step, from torch.profiler, on the monotonic clock.

torch counts nanoseconds of wall-clock time; the offset to the monotonic clock is taken when the profiler starts. Ranges
(the trainer's, torch's and the user's own `record_function`) and ops have separate tracks ("ranges", "ops", and "device" for
GPU kernels) besides the phases of a step: they are details and are not counted again as compute. An outermost op is inside no
other op; a range is no op, else DDP's range around forward would hide all ops. A profiled step is slower and must not be
scored.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import torch
from torch.profiler import profile

from autotune.profilers.ranges import PHASES, read_range
from autotune.profilers.timeline import Span

SHORTEST_S = 20e-6
"""Shorter ops, and shorter ranges of others, are left out: thousands of them cost more than they explain."""
_PROFILERS_OWN = ("ProfilerStep", "PyTorch Profiler")
_CLOCK_READINGS = 5


class OpTrace:
    """Profiles what runs in its context; `spans` are there afterwards."""

    def __init__(self) -> None:
        activities = sorted(
            torch.profiler.supported_activities(), key=str
        )  # the CPU, and accelerators that this torch can trace
        self._profile = profile(activities=activities)
        self._offset_s = 0.0

    def __enter__(self) -> Self:
        self._profile.__enter__()
        self._offset_s = wall_clock_ahead_s()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profile.__exit__(kind, error, trace)

    def spans(self, rank: int) -> tuple[Span, ...]:
        """Ranges and ops as spans on the monotonic clock."""
        begun_s = self._profile.profiler.kineto_results.trace_start_ns() * 1e-9 - self._offset_s  # type: ignore[union-attr]
        return tuple(spans_of(self._profile.events() or (), rank=rank, begun_s=begun_s))


def spans_of(events: Iterable[Any], *, rank: int, begun_s: float) -> Iterator[Span]:
    """The profiler's events as spans; they count microseconds from `begun_s`."""
    listed = [event for event in events if not event.name.startswith(_PROFILERS_OWN)]
    ranges = list(_ranges(listed, rank, begun_s))
    yield from ranges
    phases = [span for span in ranges if span.kind == "range" and span.op in PHASES]
    for event in listed:
        if not event.is_user_annotation and _is_outermost(event) and _seconds(event) >= SHORTEST_S:
            yield _op(event, rank, begun_s, phases)


def wall_clock_ahead_s() -> float:
    """Offset of the wall clock to the monotonic clock, from the fastest of several readings."""
    readings = []
    for _ in range(_CLOCK_READINGS):
        before_s, wall_s, after_s = time.monotonic(), time.time(), time.monotonic()
        readings.append((after_s - before_s, wall_s - (before_s + after_s) / 2))
    return min(readings)[1]


def _ranges(events: Iterable[Any], rank: int, begun_s: float) -> Iterator[Span]:
    """Every range of a trainer, and longer ones of others. Copies of ranges around GPU kernels are left out."""
    for event in events:
        if event.is_user_annotation and not _is_on_device(event):
            ours = read_range(event.name)
            if ours is not None or _seconds(event) >= SHORTEST_S:
                op, num_bytes = ours or (event.name, 0)
                start_s, end_s = _moments(event, begun_s)
                kind = "range" if ours else "other range"
                yield Span(
                    rank=rank, track="ranges", kind=kind, op=op, start_s=start_s, end_s=end_s, num_bytes=num_bytes
                )


def _op(event: Any, rank: int, begun_s: float, phases: Iterable[Span]) -> Span:
    """The phase of an op follows from its start, since backward may run on another thread; a GPU runs later."""
    start_s, end_s = _moments(event, begun_s)
    if _is_on_device(event):
        return Span(rank=rank, track="device", kind="op", op=event.name, start_s=start_s, end_s=end_s)
    phase = next((phase.op for phase in phases if phase.start_s <= start_s < phase.end_s), "")
    kind = f"{phase} op".strip()
    return Span(rank=rank, track="ops", kind=kind, op=event.name, start_s=start_s, end_s=end_s)


def _moments(event: Any, begun_s: float) -> tuple[float, float]:
    return begun_s + event.time_range.start * 1e-6, begun_s + event.time_range.end * 1e-6


def _seconds(event: Any) -> float:
    return float(event.time_range.elapsed_us()) * 1e-6


def _is_on_device(event: Any) -> bool:
    return bool(event.device_type.name != "CPU")


def _is_outermost(event: Any) -> bool:
    """Whether it is inside ranges only."""
    around = event.cpu_parent
    while around is not None and around.is_user_annotation:
        around = around.cpu_parent
    return around is None
