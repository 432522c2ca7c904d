"""A user's training loop whose plan changes during training: it follows rank 0's step directives and reports every step.

A step lasts from one request for a batch to the next. The compute time of a rank ends with the last of its gradients, less
the waits of its forward pass; the forward pass ends, to a good approximation, with the first gradient. The split changes
with the next batch. The communication configuration changes only between two optimizer steps: a script that accumulates
gradients over batches switches after its next `optimizer.step()`, which is the same one on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from autotune.profilers.step_stats import StepStats
from autotune.runtime.control.step_directives import StepCoordinator, StepReport
from autotune.runtime.data.script_data import TrainingData
from autotune.runtime.device import CPU, Stamp, handle_of
from autotune.runtime.reduce.bucketed import Sent
from autotune.runtime.train.retuned_trainer import parts_of
from autotune.runtime.train.script_reducer import ScriptReducer
from autotune.runtime.waits import Waits
from autotune.workloads.plan import Plan

ProbeLinks = Callable[[], tuple[float, ...]]


class RetunedScript:
    """Retunes one rank of a script, by the steps of the data set that it used first.

    Called by the thread that trains; `_note_gradient` also runs on autograd's threads, during a backward pass.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - made by parallelize only
        self,
        model: nn.Module,
        reducer: ScriptReducer,
        plan: Plan,
        coordinator: StepCoordinator,
        data: TrainingData,
        switch: Callable[[Plan], ScriptReducer],
        probe_links: ProbeLinks,
    ) -> None:
        """`switch`: makes the reducer of another plan. `probe_links`: runs a link probe."""
        self._reducer, self._plan, self._coordinator, self._data = reducer, plan, coordinator, data
        self._switch, self._probe_links = switch, probe_links
        self._wanted = plan
        """The plan of the last directive; takes effect between two optimizer steps."""
        data.before_batch = self.before_batch
        self._rank = coordinator.rank
        self._num_steps = self._num_samples = 0
        self._begun: Stamp | None = None
        self._closed: StepStats | None = None
        self._arrivals: tuple[float, ...] | None = None
        self._forward: Stamp | None = None
        self._computed: Stamp | None = None
        self._stalls = Waits()
        """Of the forward passes, until the last gradient was computed."""
        reducer.record(on=True)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._missing = self._num_gradients = len(trained)
        self._device = handle_of(trained[0]) if trained else CPU
        self._handles = [parameter.register_hook(self._note_gradient) for parameter in trained]

    def before_batch(self, step: int) -> None:
        """Called before the batch of `step` is read; the data set counts steps."""
        now = self._device.stamp()
        if self._begun is not None:
            self._report(now)
            self._closed = self._closing(self._begun.seconds, now.seconds)
            self._num_steps += 1
            self._follow(step)
        self._device.renew_clock()
        self._num_samples = self._data.num_samples(step)
        self._missing, self._computed, self._forward = self._num_gradients, None, None
        self._begun = self._device.stamp()

    def close(self) -> None:
        """End retuning; the plan stays as it is."""
        for handle in self._handles:
            handle.remove()
        self._coordinator.close()

    def _follow(self, step: int) -> None:
        """Follow the directive of the next step. `is_between_steps` is the same on every rank."""
        directive = self._coordinator.directive(self._num_steps)
        if directive.plan is not None:
            self._wanted = directive.plan
            self._data.resplit(step, directive.plan.batch.samples)
        if not self._reducer.is_between_steps:
            return
        if directive.probes_links:
            self._reducer.flush()
            self._arrivals = self._probe_links()
        wanted = replace(self._wanted, batch=self._plan.batch)
        if wanted != self._plan:
            self._plan = wanted
            self._reducer = self._switch(wanted)
            self._reducer.record(on=True)

    def _note_gradient(self, _gradient: Any) -> None:
        if self._forward is None:
            self._forward = self._device.stamp()
        self._missing -= 1
        if self._missing == 0:
            self._report(self._device.stamp())

    def _report(self, now: Stamp) -> None:
        """Once per step: with the last gradient or, if some parameters have none, at the end of the step."""
        if self._computed is None and self._begun is not None:
            self._computed, self._stalls = now, self._reducer.stalls.so_far()
            arrivals, self._arrivals = self._arrivals, None
            report = StepReport(
                step=self._num_steps,
                samples=self._num_samples,
                compute_s=0.0,
                closed=self._closed,
                arrivals=arrivals,
            )
            send = partial(_send, self._coordinator, report, self._begun, now, self._stalls)
            self._device.when_reached(now, send, self._coordinator.fail)

    def _closing(self, begun_s: float, ended_s: float) -> StepStats:
        assert self._begun is not None
        assert self._computed is not None
        step_s, compute_s = ended_s - begun_s, _compute_s(self._begun, self._computed, self._stalls)
        sent = self._reducer.sent()
        return StepStats(
            rank=self._rank,
            step=self._num_steps,
            samples=self._num_samples,
            step_s=step_s,
            compute_s=compute_s,
            forward_s=self._forward_of(compute_s, sent),
            backward_s=compute_s - self._forward_of(compute_s, sent),
            wait_s=max(step_s - compute_s, 0.0),
            stalled_s=sent.stalled_s,
            parts=parts_of(sent),
        )

    def _forward_of(self, compute_s: float, sent: Sent) -> float:
        """The part of the compute time before the first gradient."""
        if self._forward is None or self._begun is None:
            return 0.0
        return min(max(self._forward.seconds - self._begun.seconds - sent.stalled_s, 0.0), compute_s)


def _compute_s(begun: Stamp, computed: Stamp, stalls: Waits) -> float:
    return max(computed.seconds - begun.seconds - stalls.seconds, 0.0)


def _send(coordinator: StepCoordinator, report: StepReport, begun: Stamp, computed: Stamp, stalls: Waits) -> None:
    coordinator.report(replace(report, compute_s=_compute_s(begun, computed, stalls)))
