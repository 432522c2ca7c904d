"""A trainer that is steered: before each step rank 0 says whether the plan is another one, after its backward pass every rank
tells how it went.

Changing the split costs nothing. Changing how gradients travel makes a new reducer, over a process group that is opened when
such a plan first comes and kept; where links have changed, owners of shards follow them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch.distributed as dist

from autotune.profilers.step_stats import Part, PartSums, StepStats
from autotune.runtime.control.step_directives import Report, StepCoordinator
from autotune.runtime.reduce.bucketed import Sent
from autotune.runtime.train.trainer import Step, Trainer
from autotune.runtime.transport.link_check import arrivals
from autotune.workloads.plan import Plan


class SteeredTrainer:
    """One rank's; made by all ranks together."""

    def __init__(
        self,
        trainer: Trainer,
        coordinator: StepCoordinator,
        group_for: Callable[[Plan], dist.ProcessGroup],
        firsts: Sequence[int] = (),
    ) -> None:
        """`firsts`: a rank of each host, between which links are timed when asked."""
        self._trainer, self._coordinator, self._group_for, self._firsts = trainer, coordinator, group_for, firsts
        self._closed: StepStats | None = None
        self._arrivals: tuple[float, ...] | None = None
        trainer.record_collectives(on=True)
        trainer.on_computed = self._report

    def step(self) -> Step:
        """The next step, by the plan that holds for it. The first also meters memory."""
        trainer, begun_s = self._trainer, time.perf_counter()
        word = self._coordinator.word(trainer.num_steps)
        if word.plan is not None:
            if word.plan.comm != trainer.plan.comm:
                trainer.flush()  # owners of shards must not change under what is on its way
            trainer.switch(word.plan, self._group_for(word.plan))
        looked_s = self._look() if word.look else 0.0
        steering_s = time.perf_counter() - begun_s
        step = trainer.step() if trainer.num_steps else trainer.metered_step()
        step = replace(step, steering_s=steering_s, looked_s=looked_s)
        self._closed = stats_of(step, trainer.rank_context.rank, trainer.num_steps - 1)
        return step

    def _look(self) -> float:
        """Time the links; how long it took."""
        begun_s = time.perf_counter()
        self._trainer.flush()
        self._arrivals = arrivals(self._trainer.group, self._firsts)
        return time.perf_counter() - begun_s

    def close(self) -> None:
        """Nobody steers any more."""
        self._trainer.on_computed = None
        self._coordinator.close()

    def _report(self, compute_s: float) -> None:
        step = self._trainer.num_steps
        samples = len(self._trainer.batches.part(step).indices)
        found, self._arrivals = self._arrivals, None
        self._coordinator.report(
            Report(step=step, samples=samples, compute_s=compute_s, closed=self._closed, arrivals=found)
        )


def parts_of(sent: Sent) -> PartSums:
    """What a reducer sent, summed up."""
    return PartSums.of(
        Part(
            num_bytes=one.num_bytes,
            ready_s=one.posted_s if one.ready_s is None else one.ready_s,
            posted_s=one.posted_s,
            end_s=one.end_s,
        )
        for one in sent.deliveries
    )


def stats_of(step: Step, rank: int, number: int) -> StepStats:
    """What others are told of a step."""
    return StepStats(
        rank=rank,
        step=number,
        samples=step.num_samples,
        step_s=step.total_s - step.looked_s,
        compute_s=step.compute_s,
        forward_s=step.forward_s - step.data_s - step.sent.stalled_s,
        backward_s=step.backward_s - step.forward_s,
        wait_s=step.wait_s - step.looked_s,
        stalled_s=step.sent.stalled_s,
        parts=parts_of(step.sent),
    )
