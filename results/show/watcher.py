"""What a job reports while it runs: every job takes a `Watcher`, and the progress displays override what they show."""

from __future__ import annotations

from autotune.results.store.decision import Decision
from autotune.results.store.record import TrialRecord
from autotune.workloads.plan import Plan


class Watcher:
    """The events of a job, in the order in which they occur. This one shows nothing."""

    def phase(self, text: str) -> None:
        """Something other than a trial or a training step begins."""

    def start(self, total_trials: int, title: str) -> None:
        """A series of trials begins or goes on."""

    def trial_done(self, record: TrialRecord, best_step_s: float | None, default_step_s: float | None) -> None:
        """A trial has ended and is recorded; the best and the default's step so far, or None where there is none yet."""

    def training_started(self, plan: Plan) -> None:
        """The first step of a training run is about to begin, by this plan."""

    def step_done(self, num_steps: int) -> None:
        """So many training steps are done."""

    def decided(self, decision: Decision) -> None:
        """A change was detected, and training may go on by another plan."""
