"""A training loop of somebody's own, steered: whoever asks for a batch is told which samples are theirs from here on.

A step lasts from one batch that is asked for to the next. How long a rank has computed is known when the last of its gradients
is there, less what its forward pass has waited. Only the split can change: how gradients travel is the engine's for good.
"""

from __future__ import annotations

import time
from typing import Any

from torch import nn

from autotune.runtime.comm.engine import Engine
from autotune.runtime.pilot import Pilot, Report
from autotune.runtime.training_data import TrainingData
from profilers.step_stats import StepStats


class ScriptSteering:
    """One rank's, of the data set that `data` was used for first."""

    def __init__(self, model: nn.Module, engine: Engine, pilot: Pilot, data: TrainingData) -> None:
        self._engine, self._pilot, self._data = engine, pilot, data
        data.before_batch = self.before_batch
        self._rank = pilot.rank
        self._num_steps = self._num_samples = 0
        self._begun_s = 0.0
        self._closed: StepStats | None = None
        self._compute_s: float | None = None
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
            plan = self._pilot.word(self._num_steps).plan
            if plan is not None:
                self._data.resplit(step, plan.batch.samples)
        self._num_samples = self._data.num_samples(step)
        self._missing, self._compute_s = self._num_gradients, None
        self._begun_s = time.perf_counter()

    def close(self) -> None:
        """Nobody steers any more."""
        for handle in self._handles:
            handle.remove()
        self._pilot.close()

    def _note_gradient(self, _gradient: Any) -> None:
        self._missing -= 1
        if self._missing == 0:
            self._report(time.perf_counter())

    def _report(self, now_s: float) -> None:
        """Once in a step: when all gradients are there or, if some parameters took no part, when it ends."""
        if self._compute_s is None:
            self._compute_s = max(now_s - self._begun_s - self._engine.stalled_s, 0.0)
            self._engine.stalled_s = 0.0
            self._pilot.report(
                Report(
                    step=self._num_steps,
                    samples=self._num_samples,
                    compute_s=self._compute_s,
                    closed=self._closed,
                )
            )

    def _closing(self, step_s: float) -> StepStats:
        compute_s = self._compute_s or 0.0
        return StepStats(
            rank=self._rank,
            step=self._num_steps,
            samples=self._num_samples,
            step_s=step_s,
            compute_s=compute_s,
            forward_s=0.0,
            backward_s=compute_s,
            wait_s=max(step_s - compute_s, 0.0),
        )
