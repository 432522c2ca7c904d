"""Evaluators: whoever can say what a plan is worth. Today by measuring it; the search does not care how."""

from __future__ import annotations

from typing import Protocol

from autotune.runtime.crew import Crew, Measurement
from autotune.runtime.trial import Effort
from workloads.plan import Plan


class Evaluator(Protocol):
    """Judges one plan at a time."""

    def evaluate(self, plan: Plan, effort: Effort) -> Measurement:
        """What the plan takes per step, or why it cannot run."""


class MeasuredEvaluator:
    """Runs the plan on all ranks of the job."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def evaluate(self, plan: Plan, effort: Effort) -> Measurement:
        return self._crew.measure(plan, effort)
