"""One step traced and not scored: all ranks start it together, and its spans are put on rank 0's clock.

Without the common start, a rank that was late to begin would have its delay booked as everybody else's communication.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from autotune.runtime.trainer import Seat, Step, Trainer
from profilers.host import open_host
from profilers.nvml import open_nvml
from profilers.observer import Sampler
from profilers.timeline import Timeline
from profilers.torch_trace import OpTrace


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockOffset:
    """How far this rank's clock is ahead of rank 0's, and how wrong that may be."""

    ahead_s: float = 0.0
    error_s: float = 0.0


def traced_step(trainer: Trainer, clock: ClockOffset, *, with_ops: bool = False) -> tuple[Step, Timeline]:
    """Train one step and say what happened when; with torch's own ops if asked, which slows the step down."""
    if not with_ops:
        step = _recorded_step(trainer)
        return step, aligned(step.timeline(trainer.seat.rank), clock)
    with OpTrace() as ops:
        step = _recorded_step(trainer)
    inside = (span for span in ops.spans(trainer.seat.rank) if step.begin_s <= span.start_s <= step.end_s)
    both = Timeline.merge([step.timeline(trainer.seat.rank), Timeline(spans=tuple(inside))])
    return step, aligned(both, clock)


def aligned(timeline: Timeline, clock: ClockOffset) -> Timeline:
    """The same on rank 0's clock."""
    return dataclasses.replace(timeline.shifted(-clock.ahead_s), clock_error_s=clock.error_s)


def samplers_for(seat: Seat) -> list[Sampler]:
    """What there is to watch beside a rank: its GPU, and its host; the host as a whole by the first rank of it only."""
    observers = [open_host(host_wide=seat.is_first_of_host)]
    if seat.torch_device.type == "cuda":
        observers.append(open_nvml(str(torch.cuda.get_device_properties(seat.torch_device).uuid)))
    return [Sampler(observer, rank=seat.rank) for observer in observers]


def _recorded_step(trainer: Trainer) -> Step:
    trainer.meet()
    trainer.record_collectives(on=True)
    try:
        return trainer.step()
    finally:
        trainer.record_collectives(on=False)
