"""One study as rank 0 holds it: what it is about, its folder, its records, and how a trial becomes a record.

A record is on disk before anybody hears of the trial, so the same command resumes a sweep that was interrupted anywhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from autotune.jobs.context import JobContext
from autotune.jobs.evaluate import Evaluator, MeasuredEvaluator
from autotune.jobs.job import Job
from autotune.profilers.breakdown import break_down
from autotune.results.judge.selection import default_record, fastest
from autotune.results.store.environment import describe_environment
from autotune.results.store.record import StudyInfo, TrialRecord
from autotune.results.store.store import StudyStore
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import LostRankError, Measurement
from autotune.space.space import Proposal
from autotune.workloads.errors import SpecError

if TYPE_CHECKING:
    from autotune.simulate.simulator import Simulator

_FEWEST_STEPS, _MOST_STEPS = 5, 100
_TRIAL_S = 1.0
_FASTEST_TRACED, _SLOWEST_TRACED = 5, 3


class Watcher(Protocol):
    """Whoever wants to see a sweep go by: a progress bar, a log."""

    def start(self, total_trials: int, title: str) -> None:
        """A study begins or goes on."""

    def trial_done(self, record: TrialRecord, best_step_s: float | None, default_step_s: float | None) -> None:
        """A trial has been recorded."""

    def phase(self, text: str) -> None:
        """Something other than a trial begins."""


@dataclass(kw_only=True, slots=True)
class Study:
    """A sweep of one workload on one mix, as rank 0 holds it."""

    job: Job
    context: JobContext
    store: StudyStore
    evaluator: Evaluator
    watcher: Watcher
    records: list[TrialRecord]
    simulator: Simulator | None = None
    """Predicts what is measured, where the costs of the devices are known."""

    def budget(self) -> Budget:
        """As many steps as asked for; else enough to last a second, judged by the default."""
        steps = self.job.steps or steps_for(_TRIAL_S, self.records, fewest=_FEWEST_STEPS)
        return Budget(warmup=self.job.warmup, steps=steps, timeout_s=self.job.timeout_s)


def open_study(job: Job, context: JobContext, watcher: Watcher, *, num_baselines: int) -> Study:
    """Open the study's folder, or make it; refuse one that is about something else."""
    store = StudyStore(job.results / job.study_name / context.cluster.name)
    store.open_for_writing()
    space = context.problem.space(allow_lossy=job.allow_lossy)
    info = StudyInfo(
        name=job.study_name,
        workload=context.info,
        cluster=context.cluster,
        space=space.describe() | {"sampler": job.sampler},
        seed=job.seed,
        environment=describe_environment(),
        command=job.command,
        created_at=now(),
        limit=context.limit(),
    )
    if store.exists():
        _check_same(store.info(), info)
    else:
        store.write_info(info)
    records = store.records()
    evaluator = MeasuredEvaluator(context.workers)
    before = f", {len(records)} trials done before" if records else ""
    left = max(job.trials + num_baselines - len(records), 0)
    watcher.start(left, f"{context.info.name} on {context.cluster.name}{before}")
    return Study(job=job, context=context, store=store, evaluator=evaluator, watcher=watcher, records=records)


def _check_same(old: StudyInfo, new: StudyInfo) -> None:
    differences = {
        "workload": old.workload.fingerprint != new.workload.fingerprint,
        "cluster": old.cluster.fingerprint() != new.cluster.fingerprint(),
        "search space": old.space != new.space,
        "seed": old.seed != new.seed,
    }
    if changed := [what for what, differs in differences.items() if differs]:
        detail = [
            f"{key} {old.space.get(key)} -> {value}" for key, value in new.space.items() if old.space.get(key) != value
        ]
        raise SpecError(
            f"study {new.name!r} was made with another {' and '.join(changed)}"
            f"{' (' + '; '.join(detail) + ')' if detail else ''}: its trials cannot be mixed with new ones; "
            "start a new study with --study NAME, or undo the change to go on with this one"
        )


def record_trial(study: Study, proposal: Proposal) -> TrialRecord:
    """Measure a plan and put the record on disk before anybody else hears of it."""
    started, begun = now(), time.monotonic()
    silent: LostRankError | None = None
    try:
        measured = study.evaluator.evaluate(proposal.plan, study.budget())
    except LostRankError as error:
        measured, silent = error.measurement, error
    record = as_record(len(study.records), proposal, measured, started_at=started, duration_s=time.monotonic() - begun)
    if study.simulator is not None:
        record = replace(record, predicted=study.simulator.prediction(proposal.plan))
    study.store.append(record)
    study.records.append(record)
    if silent is not None:
        raise silent
    _keep_timeline(study, record, measured)
    quickest, default = fastest(study.records), default_record(study.records)
    study.watcher.trial_done(record, quickest.step_s if quickest else None, default.step_s if default else None)
    return record


def as_record(
    number: int, proposal: Proposal, measured: Measurement, *, started_at: str, duration_s: float
) -> TrialRecord:
    """What was proposed and what was measured, as it is remembered."""
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


def _keep_timeline(study: Study, record: TrialRecord, measured: Measurement) -> None:
    """Of the fastest and the slowest few; a breakdown is in every record."""
    if not measured.timeline.spans:
        return
    start_s = measured.timeline.spans[0].start_s
    study.store.write_timeline(record.number, measured.timeline.shifted(-start_s))
    ordered = [
        record.number for record in sorted(study.records, key=lambda r: r.step_s or 0.0) if record.step_s is not None
    ]
    study.store.keep_timelines(ordered[:_FASTEST_TRACED] + ordered[_FASTEST_TRACED:][-_SLOWEST_TRACED:])


def steps_for(seconds: float, records: Sequence[TrialRecord], *, fewest: int) -> int:
    """How many steps last about that long, judged by the first finished trial: short steps are noisy, so take more."""
    step_s = next((record.step_s for record in records if record.step_s is not None), None)
    return fewest if step_s is None else min(max(fewest, math.ceil(seconds / step_s)), _MOST_STEPS)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
