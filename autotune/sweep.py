"""The main job: measure the default and its hand-tuned form, search for better, compare, keep the best, report.

Rank 0 decides and writes; the other ranks carry out its orders. Every finished trial is on disk before the next begins,
so the same command resumes a sweep that was interrupted at any point.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Protocol

from autotune.bench import Bench, set_up
from autotune.contest import contenders, entries, fastest
from autotune.evaluate import Evaluator, MeasuredEvaluator
from autotune.job import Job
from autotune.runtime.control import Control
from autotune.runtime.crew import LostRankError, Measurement, follow
from autotune.runtime.trial import Effort
from autotune.search.guide import fit_costs, relative_speeds
from autotune.search.study import Proposal, Search
from autotune.space import Space, max_bucket_log2
from results.best import save_best
from results.compare import ratio, winner
from results.environment import describe_environment
from results.record import DDP_DEFAULT, BestPlan, Comparison, Role, StudyInfo, TrialRecord
from results.report import build_report
from results.report_data import SweepReport
from results.store import StudyStore
from workloads.cluster import Cluster
from workloads.errors import InfeasiblePlanError, SpecError
from workloads.plan import CODECS, LOSSLESS_CODECS, MIB, BatchPlan, Plan, default_plan
from workloads.split import balanced, even, proportional

_FEWEST_STEPS, _MOST_STEPS = 5, 100
_TRIAL_S, _ROUND_S = 1.0, 0.5
PEER_BUCKETS_BYTES = (MIB // 4, MIB, 4 * MIB, 25 * MIB)
"""Bucket sizes tried for DDP with a proportional split: what a careful user would try by hand."""


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
    bench: Bench
    store: StudyStore
    evaluator: Evaluator
    watcher: Watcher
    records: list[TrialRecord]

    def effort(self) -> Effort:
        """As many steps as asked for; else enough to last a second, judged by the default."""
        steps = self.job.steps or steps_for(_TRIAL_S, self.records, fewest=_FEWEST_STEPS)
        return Effort(warmup=self.job.warmup, steps=steps, timeout_s=self.job.timeout_s)

    def default_record(self) -> TrialRecord | None:
        return next((record for record in self.records if record.role is Role.DEFAULT), None)


def sweep(job: Job, clusters: tuple[Cluster, ...], control: Control, watcher: Watcher) -> list[SweepReport]:
    """Sweep every mix in turn; called by all ranks. Reports are rank 0's; the others return none."""
    reports = []
    for cluster in clusters:
        bench = set_up(job, cluster, control)
        if control.is_leader:
            reports.append(sweep_one(job, bench, watcher))
            bench.crew.dismiss()
        else:
            follow(control, bench.runner)
    return reports


def sweep_one(job: Job, bench: Bench, watcher: Watcher) -> SweepReport:
    """One workload on one mix, step by step."""
    study = open_study(job, bench, watcher)
    try:
        measure_default(study)
        measure_peers(study)
        search(study)
        comparison = compare(study)
        best_file = keep_best(study, comparison)
        return build_report(study.store.info(), study.records, comparison, best_file)
    finally:
        study.store.close()


def open_study(job: Job, bench: Bench, watcher: Watcher) -> Study:
    """Open the study's folder, or make it; refuse one that is about something else."""
    store = StudyStore(job.results / job.study_name / bench.cluster.name)
    store.open_for_writing()
    space = make_space(job, bench, reference=(1.0,) * len(bench.cluster.devices))
    info = StudyInfo(
        name=job.study_name,
        workload=bench.info,
        cluster=bench.cluster,
        space=space.describe() | {"sampler": job.sampler},
        seed=job.seed,
        environment=describe_environment(),
        command=job.command,
        created_at=_now(),
        limit=bench.limit(),
    )
    if store.exists():
        _check_same(store.info(), info)
    else:
        store.write_info(info)
    records = store.records()
    evaluator = MeasuredEvaluator(bench.crew)
    watcher.start(job.trials + 1 + len(PEER_BUCKETS_BYTES), f"{bench.info.name} on {bench.cluster.name}")
    return Study(job=job, bench=bench, store=store, evaluator=evaluator, watcher=watcher, records=records)


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


def make_space(job: Job, bench: Bench, reference: tuple[float, ...]) -> Space:
    """What may be tuned in this job."""
    return Space(
        global_batch=bench.info.global_batch,
        limits=bench.limits,
        reference=reference,
        transports=bench.transports,
        codecs=CODECS if job.allow_lossy else LOSSLESS_CODECS,
        max_bucket_log2=max_bucket_log2(bench.info.param_bytes),
    )


def measure_default(study: Study) -> None:
    """Torch DDP with its defaults and an even split: always first."""
    if study.default_record() is None:
        total, bench = study.bench.info.global_batch, study.bench
        no_caps = dataclasses.replace(bench.limits, caps=(total,) * len(bench.limits.caps))
        plan = default_plan(even(total, no_caps), transport=bench.transports[0])
        record_trial(study, plan, Role.DEFAULT)


def measure_peers(study: Study) -> None:
    """DDP as a careful user would tune it: samples in proportion to measured speed, several bucket sizes."""
    costs = fit_costs([r for r in study.records if r.role is Role.DEFAULT])
    if costs is None:
        return
    default = study.default_record()
    assert default is not None
    speeds = relative_speeds(costs, default.plan.batch.samples)
    samples = proportional(speeds, study.bench.info.global_batch, study.bench.limits)
    measured = {record.plan.fingerprint() for record in study.records}
    for bucket_bytes in PEER_BUCKETS_BYTES:
        plan = dataclasses.replace(
            default.plan,
            batch=BatchPlan(samples=samples),
            comm=dataclasses.replace(default.plan.comm, bucket_bytes=bucket_bytes),
        )
        if plan.fingerprint() not in measured:
            record_trial(study, plan, Role.PEER)


def search(study: Study) -> None:
    """Ask, measure, record, tell, until the budget is used."""
    job, bench = study.job, study.bench
    default = study.default_record()
    costs = fit_costs([default] if default is not None else [])
    reference = (
        relative_speeds(costs, default.plan.batch.samples) if costs and default else (1.0,) * len(bench.limits.caps)
    )
    space = make_space(job, bench, reference)
    engine = Search(study.store.search_db, space, study.records, sampler=job.sampler, seed=job.seed)
    deadline = time.monotonic() + job.time_s if job.time_s is not None else None
    done = sum(record.role is Role.SEARCH for record in study.records)
    while done < job.trials and (deadline is None or time.monotonic() < deadline):
        if job.sampler != "random" and done % 2 == 0:
            propose_balanced(study, engine)
        proposal = engine.ask()
        if proposal is None:
            study.watcher.phase("every plan of the space has been measured")
            return
        engine.tell(record_trial(study, proposal.plan, Role.SEARCH, proposal))
        done += 1


def propose_balanced(study: Study, engine: Search) -> None:
    """Queue the split that the measured speeds call for; the search chooses the other knobs."""
    if (costs := fit_costs(study.records)) is not None:
        engine.enqueue_split(balanced(costs, study.bench.info.global_batch, study.bench.limits))


def record_trial(study: Study, plan: Plan, role: Role, proposal: Proposal | None = None) -> TrialRecord:
    """Measure a plan and put the record on disk before anybody else hears of it."""
    started, begun = _now(), time.monotonic()
    silent: LostRankError | None = None
    try:
        measured = study.evaluator.evaluate(plan, study.effort())
    except LostRankError as error:
        measured, silent = error.measurement, error
    record = TrialRecord(
        number=len(study.records),
        role=role,
        state=measured.state,
        plan=plan,
        params=proposal.params if proposal else {},
        search_number=proposal.number if proposal else None,
        reason=measured.reason,
        steps_s=measured.steps_s,
        ranks=measured.ranks,
        started_at=started,
        duration_s=time.monotonic() - begun,
    )
    study.store.append(record)
    study.records.append(record)
    if silent is not None:
        raise silent
    _keep_timeline(study, record, measured)
    quickest, default = fastest(study.records), study.default_record()
    study.watcher.trial_done(record, quickest.step_s if quickest else None, default.step_s if default else None)
    return record


def _keep_timeline(study: Study, record: TrialRecord, measured: Measurement) -> None:
    if measured.timeline.spans:
        start_s = measured.timeline.spans[0].start_s
        study.store.write_timeline(record.number, measured.timeline.shifted(-start_s))


def compare(study: Study) -> Comparison:
    """Default, hand-tuned DDP, the best plan and its knobs one by one, in turn within this job; once per best plan."""
    best = fastest(study.records, Role.SEARCH)
    if best is None:
        reasons = sorted({record.reason for record in study.records if record.reason})
        raise InfeasiblePlanError(f"no plan could be measured: {'; '.join(reasons[:3])}")
    chosen = entries(study.records, best.plan)
    kept = study.store.comparison()
    if kept is not None and [c.plan for c in kept.contenders] == [entry.plan for entry in chosen]:
        return kept
    study.watcher.phase(f"comparing {len(chosen)} plans in turn, {study.job.rounds} rounds")
    steps = steps_for(_ROUND_S, study.records, fewest=2)
    effort = Effort(warmup=2, steps=steps, timeout_s=study.job.timeout_s * len(chosen))
    measured = study.bench.crew.contest([entry.plan for entry in chosen], study.job.rounds, effort)
    comparison = Comparison(contenders=contenders(chosen, measured), steps_per_round=effort.steps)
    study.store.write_comparison(comparison)
    return comparison


def keep_best(study: Study, comparison: Comparison) -> str:
    """Keep the winner of the comparison for reuse; the file it is in."""
    chosen, first, bench = winner(comparison), comparison.contenders[0], study.bench
    gain = ratio(first, chosen) if first.name == DDP_DEFAULT else None
    best = BestPlan(
        workload=bench.info.name,
        workload_fingerprint=bench.info.fingerprint,
        cluster=bench.cluster.name,
        cluster_fingerprint=bench.cluster.fingerprint(),
        plan=chosen.plan,
        step_s=median(chosen.rounds_s),
        speedup_over_default=gain.value if gain else None,
        speedup_interval=(gain.low, gain.high) if gain else (),
        label=bench.cluster.label,
        study=study.job.study_name,
        saved_at=_now(),
    )
    return str(save_best(study.job.results, best))


def steps_for(seconds: float, records: Sequence[TrialRecord], *, fewest: int) -> int:
    """How many steps last about that long, judged by the first finished trial: short steps are noisy, so take more."""
    step_s = next((record.step_s for record in records if record.step_s is not None), None)
    return fewest if step_s is None else min(max(fewest, math.ceil(seconds / step_s)), _MOST_STEPS)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
