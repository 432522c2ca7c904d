"""A trainer that is steered: before each step rank 0 says whether the plan is another one, after its backward pass every rank
tells how it went.

Changing the split costs nothing. Changing how gradients travel makes a new reducer, over a process group that is opened when
such a plan first comes and kept; where links have changed, owners of shards follow them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch.distributed as dist

from autotune.runtime.pilot import Pilot, Report
from autotune.runtime.trainer import Step, Trainer
from profilers.step_stats import Part, PartSums, StepStats
from workloads.plan import Plan


class SteeredTrainer:
    """One rank's; made by all ranks together."""

    def __init__(self, trainer: Trainer, pilot: Pilot, group_for: Callable[[Plan], dist.ProcessGroup]) -> None:
        self._trainer, self._pilot, self._group_for = trainer, pilot, group_for
        self._closed: StepStats | None = None
        trainer.record_collectives(on=True)
        trainer.on_computed = self._report

    def step(self) -> Step:
        """The next step, by the plan that holds for it. The first also meters memory."""
        trainer, begun_s = self._trainer, time.perf_counter()
        plan = self._pilot.word(trainer.num_steps)
        if plan is not None:
            trainer.switch(plan, self._group_for(plan))
        steering_s = time.perf_counter() - begun_s
        step = trainer.step() if trainer.num_steps else trainer.metered_step()
        step = replace(step, steering_s=steering_s)
        self._closed = stats_of(step, trainer.seat.rank, trainer.num_steps - 1)
        return step

    def close(self) -> None:
        """Nobody steers any more."""
        self._trainer.on_computed = None
        self._pilot.close()

    def _report(self, compute_s: float) -> None:
        step = self._trainer.num_steps
        samples = len(self._trainer.batches.part(step).indices)
        self._pilot.report(Report(step=step, samples=samples, compute_s=compute_s, closed=self._closed))


def stats_of(step: Step, rank: int, number: int) -> StepStats:
    """What others are told of a step."""
    parts = (
        Part(
            num_bytes=sent.num_bytes,
            ready_s=sent.posted_s if sent.ready_s is None else sent.ready_s,
            posted_s=sent.posted_s,
            end_s=sent.end_s,
        )
        for sent in step.sent.deliveries
    )
    return StepStats(
        rank=rank,
        step=number,
        samples=step.num_samples,
        step_s=step.total_s,
        compute_s=step.compute_s,
        forward_s=step.forward_s - step.data_s - step.sent.stalled_s,
        backward_s=step.backward_s - step.forward_s,
        wait_s=step.wait_s,
        stalled_s=step.sent.stalled_s,
        parts=PartSums.of(parts),
    )
