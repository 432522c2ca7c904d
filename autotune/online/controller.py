"""Retuning while training: from how every rank's steps go, when to go on by another plan, and by which.

Samples follow the devices (`batch_controller`, after DBS). What a step shows at once is how long each rank has computed; what
it took in all is known one step later, and until then it is taken to have waited as long as the step before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune.online.batch_controller import BatchController, Move
from profilers.step_stats import StepRow
from results.decision import COMPUTE, REGRET, Decision
from workloads.plan import Plan
from workloads.split import Bounds


class Controller:
    """Decides for one training run; `decide` hears of every step, in order."""

    def __init__(
        self,
        plan: Plan,
        limits: Bounds,
        global_batch: int,
        on_decision: Callable[[Decision], None] = lambda _: None,
    ) -> None:
        self._on_decision = on_decision
        self.plan = plan
        """By which the next step goes."""
        self.decisions: list[Decision] = []
        self._batches = BatchController(limits, global_batch)
        self._last_s: tuple[float, ...] = ()
        self._waited_s = 0.0

    def decide(self, row: StepRow) -> Decision | None:
        """What is different from the next step on, if anything."""
        if row.closed is not None:
            self._waited_s = max(stats.step_s for stats in row.closed) - max(self._last_s)
        self._last_s = row.compute_s
        if row.closed is None:  # the first step is like no other
            return None
        samples = self.plan.batch.samples
        self._batches.observe(row.step, samples, row.compute_s, max(row.compute_s) + max(self._waited_s, 0.0))
        move = self._batches.propose(row.step)
        if move is None:
            return None
        return self._decided(row.step + 1, move)

    def _decided(self, step: int, move: Move) -> Decision:
        self.plan = replace(self.plan, batch=replace(self.plan.batch, samples=move.samples))
        decision = Decision(
            step=step,
            plan=self.plan,
            kind=REGRET if move.predicted_gain < 0 else COMPUTE,
            predicted_gain=move.predicted_gain,
            reason=move.reason,
        )
        self.decisions.append(decision)
        self._on_decision(decision)
        return decision
