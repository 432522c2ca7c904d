"""Evaluators: whoever can say what a plan is worth, by measuring it or by remembering. The search does not care how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from autotune.results.store.record import TrialRecord
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import Measurement, Workers
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan


class Evaluator(Protocol):
    """Judges one plan at a time."""

    def evaluate(self, plan: Plan, budget: Budget) -> Measurement:
        """What the plan takes per step, or why it cannot run."""


class MeasuredEvaluator:
    """Runs the plan on all ranks of the job."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def evaluate(self, plan: Plan, budget: Budget) -> Measurement:
        return self._workers.measure(plan, budget)


class ReplayedEvaluator:
    """Answers from a recorded sweep as if it measured, so that ways of searching can be compared without machines.

    A plan that was recorded several times answers with each record in turn, over and over.
    """

    def __init__(self, records: Sequence[TrialRecord]) -> None:
        self._records: dict[Plan, list[TrialRecord]] = {}
        for record in records:
            self._records.setdefault(record.plan, []).append(record)
        self._asked: dict[Plan, int] = {}
        self.num_steps = 0
        """Training steps that the answers stand for, the unscored ones of each effort included."""

    @property
    def plans(self) -> list[Plan]:
        """All that can be asked for."""
        return list(self._records)

    def evaluate(self, plan: Plan, budget: Budget) -> Measurement:
        kept = self._records.get(plan)
        if kept is None:
            raise SpecError(f"plan {plan.fingerprint()} is not among the {len(self._records)} that were recorded")
        turn = self._asked.get(plan, 0)
        self._asked[plan] = turn + 1
        record = kept[turn % len(kept)]
        self.num_steps += budget.warmup + budget.steps
        return Measurement(state=record.state, reason=record.reason, steps_s=record.steps_s, ranks=record.ranks)
