"""One traced step, which is not scored: all ranks start it together, and its spans are aligned to rank 0's clock.

Without the common start, the delay of a rank that starts late would count as communication of the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from autotune.profilers.amd import open_amd
from autotune.profilers.host import open_host
from autotune.profilers.nvml import open_nvml
from autotune.profilers.observer import Observer, Sampler
from autotune.profilers.timeline import Span, Timeline
from autotune.profilers.torch_trace import OpTrace
from autotune.runtime import device
from autotune.runtime.train.trainer import RankContext
from autotune.runtime.train.trainer_protocol import TrainedStep, TrainerProtocol


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockOffset:
    """How far this rank's clock is ahead of rank 0's, and the error of that."""

    ahead_s: float = 0.0
    error_s: float = 0.0


def traced_step(
    trainer: TrainerProtocol, clock: ClockOffset, *, with_ops: bool = False
) -> tuple[TrainedStep, Timeline]:
    """Train one step and trace it. `with_ops`: with torch's ops and our ranges, which slow the step down."""
    if not with_ops:
        step = _recorded_step(trainer)
        return step, aligned(step.timeline(trainer.rank_context.rank), clock)
    with OpTrace() as ops, trainer.ranges.recorded():
        step = _recorded_step(trainer)
    inside = tuple(within(step, ops.spans(trainer.rank_context.rank)))
    both = Timeline.merge([step.timeline(trainer.rank_context.rank), Timeline(spans=inside)])
    return step, aligned(both, clock)


def within(step: TrainedStep, spans: Iterable[Span]) -> Iterator[Span]:
    """Spans whose middle lies in this step, clipped to it: torch's clock and ours agree to some microseconds only."""
    for span in spans:
        if step.begin_s <= (span.start_s + span.end_s) / 2 <= step.end_s:
            start_s, end_s = max(span.start_s, step.begin_s), min(span.end_s, step.end_s)
            yield dataclasses.replace(span, start_s=start_s, end_s=end_s)


def aligned(timeline: Timeline, clock: ClockOffset) -> Timeline:
    """The timeline on rank 0's clock."""
    return dataclasses.replace(timeline.shifted(-clock.ahead_s), clock_error_s=clock.error_s)


def samplers_for(rank_context: RankContext) -> list[Sampler]:
    """Samplers of a rank's GPU and host; host-wide counters are sampled by the first rank of the host only."""
    observers = [open_host(host_wide=rank_context.is_first_of_host)]
    if device.handle(rank_context.torch_device).is_accelerator:
        observers.append(open_accelerator(rank_context.torch_device))
    return [Sampler(observer, rank=rank_context.rank) for observer in observers]


def open_accelerator(torch_device: torch.device) -> Observer:
    """NVML reports an accelerator that it does not know as unavailable, with the reason."""
    if device.is_amd():
        return open_amd(device.bus_address(torch_device))
    return open_nvml(device.uuid(torch_device))


def _recorded_step(trainer: TrainerProtocol) -> TrainedStep:
    """With cross-step overlap an untraced step precedes it: a step that begins with nothing in flight is not typical."""
    trainer.barrier()
    if trainer.plan.comm.crosses_steps:
        trainer.step()
    trainer.record_collectives(on=True)
    try:
        return trainer.step()
    finally:
        trainer.record_collectives(on=False)
