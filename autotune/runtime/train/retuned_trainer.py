"""A trainer whose plan changes during training: it follows rank 0's step directives and reports every step.

A new split takes effect at no cost. A new communication configuration builds a new reducer, over a process group that is
opened for the first such plan and then reused. Where link speeds have changed, the owner shares follow them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch.distributed as dist

from autotune.profilers.step_stats import Part, PartSums, StepStats
from autotune.runtime.control.step_directives import StepCoordinator, StepReport
from autotune.runtime.reduce.bucketed import Sent
from autotune.runtime.train.step import Step
from autotune.runtime.train.trainer import Trainer
from autotune.runtime.transport.link_check import probe_links
from autotune.workloads.plan import Plan


class RetunedTrainer:
    """The retuned trainer of one rank; made by all ranks together, and called by the thread that trains.

    `_report` runs inside the trainer's step: on that thread, or on autograd's where gradients are computed there.
    """

    def __init__(
        self,
        trainer: Trainer,
        coordinator: StepCoordinator,
        group_for: Callable[[Plan], dist.ProcessGroup],
        representatives: Sequence[int] = (),
    ) -> None:
        """`group_for`: the process group of a plan. `representatives`: a rank of each host, for link probes."""
        self._trainer, self._coordinator = trainer, coordinator
        self._group_for, self._representatives = group_for, representatives
        self._closed: StepStats | None = None
        self._arrivals: tuple[float, ...] | None = None
        trainer.record_collectives(on=True)
        trainer.on_computed, trainer.on_failure = self._report, self._coordinator.fail

    def step(self) -> Step:
        """Train the next step by the plan that its directive gives. The first step also meters memory."""
        trainer, begun_s = self._trainer, time.perf_counter()
        directive = self._coordinator.directive(trainer.num_steps)
        if directive.plan is not None:
            if directive.plan.comm != trainer.plan.comm:
                trainer.flush()  # owner shares must not change while an all-reduce is in flight
            trainer.switch(directive.plan, self._group_for(directive.plan))
        link_probe_s = self._probe_links() if directive.probes_links else 0.0
        directive_s = time.perf_counter() - begun_s
        step = trainer.step() if trainer.num_steps else trainer.metered_step()
        step = replace(step, directive_s=directive_s, link_probe_s=link_probe_s)
        self._closed = stats_of(step, trainer.rank_context.rank, trainer.num_steps - 1)
        return step

    def _probe_links(self) -> float:
        """Run a link probe; its duration."""
        begun_s = time.perf_counter()
        self._trainer.flush()
        self._arrivals = probe_links(self._trainer.group, self._representatives)
        return time.perf_counter() - begun_s

    def close(self) -> None:
        """End retuning; the plan stays as it is."""
        self._trainer.on_computed = None
        self._coordinator.close()

    def _report(self, compute_s: Callable[[], float]) -> Callable[[], None]:
        """Of this step, whichever the trainer is in when the device has computed."""
        step = self._trainer.num_steps
        samples = len(self._trainer.batches.part(step).indices)
        arrivals, self._arrivals = self._arrivals, None
        report = StepReport(step=step, samples=samples, compute_s=0.0, closed=self._closed, arrivals=arrivals)
        return lambda: self._coordinator.report(replace(report, compute_s=compute_s()))


def parts_of(sent: Sent) -> PartSums:
    """Sums over the collectives of a reducer."""
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
    """The statistics of a step that are reported to rank 0."""
    return StepStats(
        rank=rank,
        step=number,
        samples=step.num_samples,
        step_s=step.total_s - step.link_probe_s,
        compute_s=step.compute_s,
        forward_s=step.forward_s - step.data_s - step.sent.stalled_s,
        backward_s=step.backward_s - step.forward_s,
        wait_s=step.wait_s - step.link_probe_s,
        stalled_s=step.sent.stalled_s,
        parts=parts_of(step.sent),
    )
