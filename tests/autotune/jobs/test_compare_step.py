"""The comparison that ends a sweep: a knob of the best plan that costs speed is reset, and that plan compared anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.jobs.sweep import compare, trace_best
from autotune.profilers.timeline import Span, Timeline
from autotune.results.judge.compare import faster_without, winner
from autotune.results.show.watcher import Watcher
from autotune.results.store.record import BEST, Comparison, Role, TrialState
from autotune.results.store.store import StudyStore
from autotune.runtime.trial.workers import Measurement
from autotune.workloads.plan import MIB, Plan
from tests.results import sample

ROUNDS = 10
DEFAULT = sample.records()[0].plan
SMALL = sample.plan(bucket_bytes=MIB)


class FakeStore:
    """Keeps one comparison."""

    def __init__(self) -> None:
        self.kept: Comparison | None = None

    def comparison(self) -> Comparison | None:
        return self.kept

    def write_comparison(self, comparison: Comparison) -> None:
        self.kept = comparison


class FakeWorkers:
    """Plans take `step_s` of them, a little more every other round."""

    def __init__(self, step_s: Callable[[Plan], float]) -> None:
        self._step_s, self.num_comparisons = step_s, 0

    def compare(self, plans: Sequence[Plan], rounds: int, _budget: Any) -> list[Measurement]:
        self.num_comparisons += 1
        return [
            Measurement(
                state=TrialState.COMPLETE,
                steps_s=tuple(self._step_s(plan) * (1.01 if number % 2 else 1.0) for number in range(rounds)),
            )
            for plan in plans
        ]


def study_of(step_s: Callable[[Plan], float]) -> Any:
    records = [
        sample.trial(0, Role.DEFAULT, DEFAULT, step_s(DEFAULT)),
        sample.trial(1, Role.SEARCH, SMALL, step_s(SMALL)),
    ]
    return SimpleNamespace(
        records=records,
        store=FakeStore(),
        watcher=Watcher(),
        job=SimpleNamespace(rounds=ROUNDS, timeout_s=60.0),
        context=SimpleNamespace(workers=FakeWorkers(step_s)),
    )


def search_of(study: Any) -> Any:
    return SimpleNamespace(choice=lambda _records: study.records[1])


def best_of(comparison: Comparison) -> Plan:
    return next(one.plan for one in comparison.contenders if one.name == BEST)


def test_a_bucket_size_that_costs_speed_is_reset_and_stays_so_when_resumed() -> None:
    study = study_of(
        lambda plan: (0.2 if plan.batch == DEFAULT.batch else 0.1) * (1 if plan.comm.bucket_bytes > MIB else 1.3)
    )
    found = compare(study, search_of(study))
    assert best_of(found).comm.bucket_bytes == DEFAULT.comm.bucket_bytes
    assert best_of(found).batch == SMALL.batch
    assert winner(found).plan == best_of(found)
    assert faster_without(found) is None
    assert study.context.workers.num_comparisons == 2
    assert compare(study, search_of(study)) == found
    assert study.context.workers.num_comparisons == 2


def test_what_was_compared_is_kept_before_it_is_compared_anew() -> None:
    study = study_of(
        lambda plan: (0.2 if plan.batch == DEFAULT.batch else 0.1) * (1 if plan.comm.bucket_bytes > MIB else 1.3)
    )
    measure = study.context.workers.compare

    def killed_in_the_second(*arguments: Any) -> list[Measurement]:
        if study.context.workers.num_comparisons:
            raise KeyboardInterrupt
        return measure(*arguments)

    study.context.workers.compare = killed_in_the_second
    with pytest.raises(KeyboardInterrupt):
        compare(study, search_of(study))
    study.context.workers.compare = measure
    assert best_of(study.store.kept) == SMALL
    assert best_of(compare(study, search_of(study))).comm.bucket_bytes == DEFAULT.comm.bucket_bytes
    assert study.context.workers.num_comparisons == 2


def test_a_plan_whose_knobs_all_help_is_compared_once() -> None:
    study = study_of(
        lambda plan: (0.2 if plan.batch == DEFAULT.batch else 0.1) * (1.3 if plan.comm.bucket_bytes > MIB else 1)
    )
    found = compare(study, search_of(study))
    assert best_of(found) == SMALL
    assert compare(study, search_of(study)) == found
    assert study.context.workers.num_comparisons == 1


def test_knobs_that_never_stop_to_cost_speed_are_reset_a_few_times_at_most() -> None:
    seen: list[Plan] = []

    def ever_faster(plan: Plan) -> float:
        if plan not in seen:
            seen.append(plan)
        return 1.0 / (1 + seen.index(plan))

    study = study_of(ever_faster)
    compare(study, search_of(study))
    assert study.context.workers.num_comparisons <= 3


def test_a_step_is_traced_of_a_best_plan_that_was_never_a_trial_once(tmp_path: Path) -> None:
    study = study_of(
        lambda plan: (0.2 if plan.batch == DEFAULT.batch else 0.1) * (1 if plan.comm.bucket_bytes > MIB else 1.3)
    )
    found = compare(study, search_of(study))
    study.store, traced_plans = StudyStore(tmp_path), []
    span = Span(rank=0, track="compute", kind="forward", op="forward", start_s=7.0, end_s=7.5)

    def evaluate(plan: Plan, _budget: Any) -> Measurement:
        traced_plans.append(plan)
        return Measurement(state=TrialState.COMPLETE, timeline=Timeline(spans=(span,)))

    study.evaluator = SimpleNamespace(evaluate=evaluate)
    for _ in range(2):
        trace_best(study, found)
    assert traced_plans == [best_of(found)]
    traced = study.store.plan_timeline(best_of(found))
    assert traced is not None
    assert traced.spans[0].start_s == 0.0
    trace_best(study, sample.comparison(best=SMALL))
    assert len(traced_plans) == 1
