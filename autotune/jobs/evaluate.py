"""Evaluators measure a plan on all ranks, or replay what was recorded; and how a trial becomes a record, and a forecast a plan file.

A search does not depend on which evaluator it has. `sweep` and `race` both measure through `measure_trial`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from autotune.jobs.predict import Predictor
from autotune.profilers.breakdown import break_down
from autotune.profilers.timeline import Timeline
from autotune.results.store.forecast import Forecast
from autotune.results.store.record import BestPlan, TrialRecord
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import LostRankError, Measurement, Workers
from autotune.space.space import Proposal
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan


class Evaluator(Protocol):
    """Evaluates one plan at a time."""

    def evaluate(self, plan: Plan, budget: Budget) -> Measurement:
        """The time of each step, or why the plan cannot run."""


class MeasuredEvaluator:
    """Runs the plan on all ranks of the job."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def evaluate(self, plan: Plan, budget: Budget) -> Measurement:
        return self._workers.measure(plan, budget)


class ReplayedEvaluator:
    """Replays a recorded sweep, so that search methods can be compared without machines.

    A plan that was recorded several times yields its records one after another, and then the first again.
    """

    def __init__(self, records: Sequence[TrialRecord]) -> None:
        self._records: dict[Plan, list[TrialRecord]] = {}
        for record in records:
            self._records.setdefault(record.plan, []).append(record)
        self._num_replayed: dict[Plan, int] = {}
        self.num_steps = 0
        """Training steps that the replayed records took, with the unscored ones of each measurement budget."""

    @property
    def plans(self) -> list[Plan]:
        """All plans that can be evaluated."""
        return list(self._records)

    def evaluate(self, plan: Plan, budget: Budget) -> Measurement:
        kept = self._records.get(plan)
        if kept is None:
            raise SpecError(f"plan {plan.fingerprint()} is not among the {len(self._records)} that were recorded")
        number = self._num_replayed.get(plan, 0)
        self._num_replayed[plan] = number + 1
        record = kept[number % len(kept)]
        self.num_steps += budget.warmup + budget.steps
        return Measurement(state=record.state, reason=record.reason, steps_s=record.steps_s, ranks=record.ranks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One plan, evaluated."""

    record: TrialRecord
    timeline: Timeline
    """Of one more step, traced and not scored; empty where none was traced."""
    lost_rank: LostRankError | None = None
    """A rank no longer answers: raise this once the record is kept."""


def measure_trial(evaluator: Evaluator, proposal: Proposal, budget: Budget, *, number: int) -> Trial:
    """Evaluate a proposed plan; a rank that no longer answers is a failed trial."""
    started_at, begun_s = now(), time.monotonic()
    lost_rank: LostRankError | None = None
    try:
        measured = evaluator.evaluate(proposal.plan, budget)
    except LostRankError as error:
        measured, lost_rank = error.measurement, error
    record = as_record(number, proposal, measured, started_at=started_at, duration_s=time.monotonic() - begun_s)
    return Trial(record=record, timeline=measured.timeline, lost_rank=lost_rank)


def as_record(
    number: int, proposal: Proposal, measured: Measurement, *, started_at: str, duration_s: float
) -> TrialRecord:
    """The proposal and its measurement, as the study stores them."""
    return TrialRecord(
        number=number,
        role=proposal.role,
        state=measured.state,
        plan=proposal.plan,
        params=proposal.params,
        search_number=proposal.number,
        reason=measured.reason,
        steps_s=measured.steps_s,
        ranks=measured.ranks,
        breakdown=break_down(measured.timeline) if measured.timeline.spans else None,
        started_at=started_at,
        duration_s=duration_s,
    )


def now() -> str:
    """The time of day, for records."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def as_best_plan(forecast: Forecast, predictor: Predictor) -> BestPlan:
    """The plan of a forecast, as a file that `autotune train` takes."""
    return BestPlan(
        workload=forecast.workload,
        workload_fingerprint=predictor.simulator.info.fingerprint,
        cluster=predictor.cluster.name,
        cluster_fingerprint=predictor.cluster.fingerprint(),
        plan=forecast.plan,
        step_s=forecast.step_s,
        speedup_over_default=None,
        label="predicted",
        saved_at=now(),
        parameters=predictor.simulator.graph.shapes,
    )
