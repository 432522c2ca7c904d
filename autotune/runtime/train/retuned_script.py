"""A training loop of somebody's own, steered: whoever asks for a batch is told which samples are theirs from here on, and how
gradients travel.

A step lasts from one batch that is asked for to the next. How long a rank has computed is known when the last of its gradients
is there, less what its forward pass has waited; the forward pass ends, near enough, with the first. Gradients can
travel another way only between two steps of the optimizer: a script that accumulates gradients over batches gets
its new way after its next `optimizer.step()`, which is the same one on every rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from autotune.profilers.step_stats import StepStats
from autotune.runtime.control.step_directives import Report, StepCoordinator
from autotune.runtime.data.script_data import TrainingData
from autotune.runtime.reduce.bucketed import Sent
from autotune.runtime.train.retuned_trainer import parts_of
from autotune.runtime.train.script_reducer import ScriptReducer
from autotune.workloads.plan import Plan

Look = Callable[[], tuple[float, ...]]


class ScriptSteering:
    """One rank's, of the data set that `data` was used for first."""

    def __init__(  # noqa: PLR0913, PLR0917 - made by parallelize only
        self,
        model: nn.Module,
        engine: ScriptReducer,
        plan: Plan,
        coordinator: StepCoordinator,
        data: TrainingData,
        switch: Callable[[Plan], ScriptReducer],
        look: Look,
    ) -> None:
        """`switch`: gradients travel as this plan says from here on. `look`: times the links."""
        self._engine, self._plan, self._coordinator, self._data = engine, plan, coordinator, data
        self._switch, self._look = switch, look
        self._wanted = plan
        """The plan as rank 0 wants it, which may have to wait for the optimizer."""
        data.before_batch = self.before_batch
        self._rank = coordinator.rank
        self._num_steps = self._num_samples = 0
        self._begun_s = 0.0
        self._closed: StepStats | None = None
        self._arrivals: tuple[float, ...] | None = None
        self._forward_s: float | None = None
        self._compute_s: float | None = None
        engine.record(on=True)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._missing = self._num_gradients = len(trained)
        self._handles = [parameter.register_hook(self._note_gradient) for parameter in trained]

    def before_batch(self, step: int) -> None:
        """The batch of `step`, as the data set counts, is about to be read."""
        now_s = time.perf_counter()
        if self._begun_s:
            self._report(now_s)
            self._closed = self._closing(now_s - self._begun_s)
            self._num_steps += 1
            self._obey(step)
        self._num_samples = self._data.num_samples(step)
        self._missing, self._compute_s, self._forward_s = self._num_gradients, None, None
        self._begun_s = time.perf_counter()

    def close(self) -> None:
        """Nobody steers any more."""
        for handle in self._handles:
            handle.remove()
        self._coordinator.close()

    def _obey(self, step: int) -> None:
        """What rank 0 says of the next step; every rank finds itself between steps, or not, alike."""
        word = self._coordinator.word(self._num_steps)
        if word.plan is not None:
            self._wanted = word.plan
            self._data.resplit(step, word.plan.batch.samples)
        if not self._engine.is_between_steps:
            return
        if word.look:
            self._engine.flush()
            self._arrivals = self._look()
        wanted = replace(self._wanted, batch=self._plan.batch)
        if wanted != self._plan:
            self._plan = wanted
            self._engine = self._switch(wanted)
            self._engine.record(on=True)

    def _note_gradient(self, _gradient: Any) -> None:
        if self._forward_s is None:
            self._forward_s = time.perf_counter()
        self._missing -= 1
        if self._missing == 0:
            self._report(time.perf_counter())

    def _report(self, now_s: float) -> None:
        """Once in a step: when all gradients are there or, if some parameters took no part, when it ends."""
        if self._compute_s is None:
            self._compute_s = max(now_s - self._begun_s - self._engine.stalled_s, 0.0)
            found, self._arrivals = self._arrivals, None
            self._coordinator.report(
                Report(
                    step=self._num_steps,
                    samples=self._num_samples,
                    compute_s=self._compute_s,
                    closed=self._closed,
                    arrivals=found,
                )
            )

    def _closing(self, step_s: float) -> StepStats:
        compute_s, sent = self._compute_s or 0.0, self._engine.sent()
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
        """Of the time computed, until the first gradient."""
        if self._forward_s is None:
            return 0.0
        return min(max(self._forward_s - self._begun_s - sent.stalled_s, 0.0), compute_s)
