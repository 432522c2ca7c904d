"""One study on rank 0: its job, its folder and its records.

A record is on disk before anything else uses the trial, so the same command resumes a sweep that was interrupted anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.jobs.context import JobContext
from autotune.jobs.evaluate import Evaluator, MeasuredEvaluator, Trial, as_record, measure_trial, now
from autotune.jobs.job import SweepJob
from autotune.profilers.timeline import Timeline
from autotune.results.judge.selection import default_record, fastest
from autotune.results.show.watcher import Watcher
from autotune.results.store.environment import describe_environment
from autotune.results.store.profile import CollectiveProfile
from autotune.results.store.record import StudyInfo, TrialRecord, TrialState
from autotune.results.store.store import StudyStore
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import Measurement
from autotune.space.space import Proposal
from autotune.workloads.errors import SpecError

if TYPE_CHECKING:
    from autotune.simulate.simulator import Simulator

_FEWEST_STEPS, _MOST_STEPS = 5, 100
_TRIAL_S = 1.0
_FASTEST_TRACED, _SLOWEST_TRACED = 5, 3


_LONGEST_DETAIL = 100
_MOST_ENDED = 2
"""Jobs that may end without a word during one plan, before it counts as failed."""


@dataclass(kw_only=True, slots=True)
class Study:
    """A sweep of one workload on one cluster, on rank 0."""

    job: SweepJob
    context: JobContext
    store: StudyStore
    evaluator: Evaluator
    watcher: Watcher
    records: list[TrialRecord]
    simulator: Simulator | None
    """Predicts each trial, where the costs of the devices are stated or measured."""

    def budget(self) -> Budget:
        """The number of steps that the user gave; else enough for a second, by the step time of the default."""
        steps = self.job.steps or steps_for(_TRIAL_S, self.records, fewest=_FEWEST_STEPS)
        return Budget(warmup=self.job.warmup, steps=steps, timeout_s=self.job.timeout_s)


def store_of(job: SweepJob, context: JobContext) -> StudyStore:
    return StudyStore(job.results / job.study_name / context.cluster.name)


def open_study(  # noqa: PLR0913 - what a study is made of
    job: SweepJob,
    context: JobContext,
    watcher: Watcher,
    simulator: Simulator | None,
    all_reduces: tuple[CollectiveProfile, ...] = (),
    *,
    num_baselines: int,
) -> Study:
    """Open the study's folder, or make it; refuse one of another workload, cluster, search space or seed."""
    store = store_of(job, context)
    store.open_for_writing()
    space = context.problem.space(allow_lossy=job.allow_lossy)
    info = StudyInfo(
        name=job.study_name,
        workload=context.info,
        cluster=context.cluster,
        space=space.describe() | {"sampler": job.sampler},
        seed=job.seed,
        environment=describe_environment() | ({"devices": context.devices} if context.devices else {}),
        command=job.command,
        created_at=now(),
        limit=context.limit(),
        all_reduces=all_reduces,
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
    return Study(
        job=job,
        context=context,
        store=store,
        evaluator=evaluator,
        watcher=watcher,
        records=records,
        simulator=simulator,
    )


def _check_same(old: StudyInfo, new: StudyInfo) -> None:
    differences = {
        "workload": old.workload.fingerprint != new.workload.fingerprint,
        "cluster": old.cluster.fingerprint() != new.cluster.fingerprint(),
        "search space": old.space != new.space,
        "seed": old.seed != new.seed,
    }
    if changed := [what for what, differs in differences.items() if differs]:
        detail = [
            _change(key, old.space.get(key), value) for key, value in new.space.items() if old.space.get(key) != value
        ]
        raise SpecError(
            f"study {new.name!r} was made with another {' and '.join(changed)}"
            f"{' (' + '; '.join(detail) + ')' if detail else ''}: its trials cannot be mixed with new ones; "
            "start a new study with --study NAME, or undo the change to go on with this one"
        )


def _change(key: str, old: object, new: object) -> str:
    """What has changed in a space; of long values only the name."""
    text = f"{key} {old} -> {new}"
    return text if len(text) <= _LONGEST_DETAIL else key


def record_trial(study: Study, proposal: Proposal) -> TrialRecord:
    """Measure a plan and write its record to disk before anything else uses it."""
    number, num_ended = len(study.records), study.store.begin(proposal.plan)
    if num_ended < _MOST_ENDED:
        trial = measure_trial(study.evaluator, proposal, study.budget(), number=number)
    else:
        trial = _not_measured(proposal, number, num_ended)
    record = trial.record
    if study.simulator is not None and proposal.plan.embedding is None:
        record = replace(record, predicted=study.simulator.prediction(proposal.plan))
    study.store.append(record)
    study.records.append(record)
    if trial.lost_rank is not None:
        raise trial.lost_rank
    _keep_timeline(study, record, trial.timeline)
    quickest, default = fastest(study.records), default_record(study.records)
    study.watcher.trial_done(record, quickest.step_s if quickest else None, default.step_s if default else None)
    return record


def _not_measured(proposal: Proposal, number: int, num_ended: int) -> Trial:
    """A plan during which jobs have ended without a word: out of memory, a fault of a driver, a signal."""
    reason = f"not measured again: {num_ended} jobs ended while they measured this plan"
    measured = Measurement(state=TrialState.FAILED, reason=reason)
    record = as_record(number, proposal, measured, started_at=now(), duration_s=0.0)
    return Trial(record=record, timeline=measured.timeline)


def _keep_timeline(study: Study, record: TrialRecord, timeline: Timeline) -> None:
    """Of the fastest and the slowest few; a breakdown is in every record."""
    if not timeline.spans:
        return
    study.store.write_timeline(record.number, timeline.shifted(-timeline.spans[0].start_s))
    ordered = [
        record.number for record in sorted(study.records, key=lambda r: r.step_s or 0.0) if record.step_s is not None
    ]
    study.store.keep_timelines(ordered[:_FASTEST_TRACED] + ordered[_FASTEST_TRACED:][-_SLOWEST_TRACED:])


def steps_for(seconds: float, records: Sequence[TrialRecord], *, fewest: int) -> int:
    """How many steps last about that long, by the first finished trial: short steps are noisy, so take more."""
    step_s = next((record.step_s for record in records if record.step_s is not None), None)
    return fewest if step_s is None else min(max(fewest, math.ceil(seconds / step_s)), _MOST_STEPS)
