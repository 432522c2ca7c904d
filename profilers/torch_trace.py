"""What torch did in a step, op by op, from torch.profiler: the outermost ops of every thread, on our own clock.

torch counts nanoseconds of wall-clock time; the offset to the monotonic clock is taken when the profiler starts. Ops go to
lanes of their own ("ops", and "device" for what a GPU ran), beside the phases of a step: they explain, and are not counted
again as compute. A profiled step is slower and must not be scored.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import torch
from torch.profiler import ProfilerActivity, profile

from profilers.timeline import Span

SHORTEST_S = 20e-6
"""Shorter ops are left out: thousands of them say less than they cost to keep."""
_PYTHON = ("ProfilerStep", "PyTorch Profiler")


class OpTrace:
    """Profiles what runs in its context; `spans` are there afterwards."""

    def __init__(self) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._profile = profile(activities=activities)
        self._offset_s = 0.0

    def __enter__(self) -> Self:
        self._profile.__enter__()
        self._offset_s = time.time() - time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profile.__exit__(kind, error, trace)

    def spans(self, rank: int) -> tuple[Span, ...]:
        """The ops as spans on the monotonic clock."""
        return tuple(self._spans(rank))

    def _spans(self, rank: int) -> Iterator[Span]:
        begun_s = self._profile.profiler.kineto_results.trace_start_ns() * 1e-9 - self._offset_s  # type: ignore[union-attr]
        for event in self._profile.events() or ():
            if _is_outermost(event) and event.time_range.elapsed_us() * 1e-6 >= SHORTEST_S:
                on_device = event.device_type.name != "CPU"
                yield Span(
                    rank=rank,
                    lane="device" if on_device else "ops",
                    kind="op",
                    op=event.name,
                    start_s=begun_s + event.time_range.start * 1e-6,
                    end_s=begun_s + event.time_range.end * 1e-6,
                )


def _is_outermost(event: Any) -> bool:
    return event.cpu_parent is None and not event.name.startswith(_PYTHON)
