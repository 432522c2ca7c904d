from __future__ import annotations

import pytest

from autotune.jobs.evaluate import ReplayedEvaluator
from autotune.results.store.record import Role, TrialRecord, TrialState
from autotune.runtime.trial.runner import Budget
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import BatchPlan, Plan

BUDGET = Budget(warmup=2, steps=3, timeout_s=1)
FAST, SLOW, BROKEN = (Plan(batch=BatchPlan(samples=samples)) for samples in ((3, 1), (2, 2), (1, 3)))


def record(plan, *steps_s, state=TrialState.COMPLETE, reason=""):
    return TrialRecord(number=0, role=Role.SEARCH, state=state, plan=plan, steps_s=steps_s, reason=reason)


def test_a_recorded_plan_answers_as_it_was_measured():
    replayed = ReplayedEvaluator([record(FAST, 1.0, 1.1), record(SLOW, 2.0)])
    assert replayed.evaluate(FAST, BUDGET).steps_s == (1.0, 1.1)
    assert replayed.evaluate(SLOW, BUDGET).steps_s == (2.0,)
    assert replayed.num_steps == 10


def test_repeated_records_are_replayed_one_after_another():
    replayed = ReplayedEvaluator([record(FAST, 1.0), record(FAST, 1.2)])
    assert [replayed.evaluate(FAST, BUDGET).steps_s for _ in range(3)] == [(1.0,), (1.2,), (1.0,)]


def test_failures_are_replayed_too():
    replayed = ReplayedEvaluator([record(BROKEN, state=TrialState.INFEASIBLE, reason="too large")])
    answer = replayed.evaluate(BROKEN, BUDGET)
    assert (answer.state, answer.reason) == (TrialState.INFEASIBLE, "too large")


def test_what_was_not_recorded_is_not_invented():
    with pytest.raises(SpecError, match="not among the 1"):
        ReplayedEvaluator([record(FAST, 1.0)]).evaluate(SLOW, BUDGET)
