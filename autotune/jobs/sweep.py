"""The main job: measure the default and its hand-tuned form, search for better, compare, keep the best, report.

Rank 0 decides and writes; the other ranks carry out its orders. Every finished trial is on disk before the next begins,
so the same command resumes a sweep that was interrupted at any point.
"""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

from autotune.jobs.ablation import Entry, contenders, entries
from autotune.jobs.context import JobContext, set_up
from autotune.jobs.job import Job
from autotune.jobs.network_profile import measure_all_reduces
from autotune.jobs.quality import guarded_codecs
from autotune.jobs.study import Study, Watcher, now, open_study, record_trial, steps_for
from autotune.results.judge.compare import faster_without, ratio, winner
from autotune.results.judge.report import build_report
from autotune.results.judge.report_data import SweepReport
from autotune.results.store.best import save_best
from autotune.results.store.profile import CollectiveProfile
from autotune.results.store.record import BEST, DDP_DEFAULT, BestPlan, Comparison, Role
from autotune.runtime.control.mpi import Control
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import follow
from autotune.search.tuner import TUNED_BUCKETS_BYTES, GuidedSearch, SearchOptions, TunedDdp, Tuner
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import InfeasiblePlanError
from autotune.workloads.plan import Plan

_ROUND_S = 0.5
_MOST_PUT_BACK = 2
"""Knobs, one after the other."""


def sweep(job: Job, clusters: tuple[Cluster, ...], control: Control, watcher: Watcher) -> list[SweepReport]:
    """Sweep every mix in turn; called by all ranks. Reports are rank 0's; the others return none."""
    reports = []
    for cluster in clusters:
        context = set_up(job, cluster, control)
        all_reduces = measure_all_reduces(context, control, timeout_s=job.timeout_s)
        if control.is_leader:
            reports.append(sweep_one(job, context, watcher, all_reduces))
            context.workers.dismiss()
        else:
            follow(control, context.runner)
    return reports


def sweep_one(
    job: Job, context: JobContext, watcher: Watcher, all_reduces: tuple[CollectiveProfile, ...] = ()
) -> SweepReport:
    """One workload on one mix, step by step."""
    from autotune.jobs.predict import job_pipelines, job_simulator  # noqa: PLC0415 - compiled code that rank 0 alone needs

    simulator = job_simulator(job, context, all_reduces)
    context = replace(context, staged=job_pipelines(job, context, simulator))
    study = open_study(job, context, watcher, num_baselines=1 + len(TUNED_BUCKETS_BYTES))
    study.simulator = simulator
    if simulator is None:
        watcher.phase("these devices state no speed and have no profile: searching without predictions")
    if job.allow_lossy:
        passed = guarded_codecs(context, timeout_s=job.timeout_s, say=watcher.phase)
        context = study.context = replace(context, codecs=passed)
    try:
        tune(study, TunedDdp(context.problem))
        options = SearchOptions(sampler=job.sampler, seed=job.seed, allow_lossy=job.allow_lossy, trials=job.trials)
        search = GuidedSearch(context.problem, options, study.store.search_db, simulator=study.simulator)
        tune(study, search, trials=job.trials, time_s=job.time_s)
        comparison = compare(study, search)
        best_file = keep_best(study, comparison)
        trace_best(study, comparison)
        return build_report(study.store.info(), study.records, comparison, best_file, results=job.results)
    finally:
        study.store.close()


def tune(study: Study, tuner: Tuner, *, trials: int | None = None, time_s: float | None = None) -> None:
    """Propose, measure, record, tell, until the tuner has no more to propose or the budget of searched trials is used."""
    deadline = time.monotonic() + time_s if time_s is not None else None
    while deadline is None or time.monotonic() < deadline:
        if trials is not None and sum(record.role is Role.SEARCH for record in study.records) >= trials:
            return
        proposal = tuner.propose(study.records)
        if proposal is None:
            if trials is not None:
                study.watcher.phase(tuner.enough or "every plan of the space has been measured")
            return
        tuner.heard(record_trial(study, proposal))


def compare(study: Study, search: Tuner) -> Comparison:
    """Default, hand-tuned DDP, the best plan and its knobs one by one, in turn within this job; once per best plan.

    Where a knob of the best plan turns out to cost speed, it is put back, and that plan is compared with everybody anew.
    """
    best = search.choice(study.records)
    if best is None:
        reasons = sorted({record.reason for record in study.records if record.reason})
        raise InfeasiblePlanError(f"no plan could be measured: {'; '.join(reasons[:3])}")
    comparison = in_turn(study, entries(study.records, _as_last_compared(study, best.plan)))
    for _ in range(_MOST_PUT_BACK):
        simpler = faster_without(comparison)
        if simpler is None:
            break
        study.watcher.phase(f"faster without its {simpler.reverts}: that plan takes the best one's place")
        comparison = in_turn(study, entries(study.records, simpler.plan))
    return comparison


def _as_last_compared(study: Study, best: Plan) -> Plan:
    """The best plan, or the one that took its place when it was compared before."""
    kept, variants = study.store.comparison(), {entry.plan for entry in entries(study.records, best) if entry.reverts}
    last = [one.plan for one in kept.contenders if one.name == BEST] if kept is not None else []
    return next((plan for plan in last if plan in variants), best)


def in_turn(study: Study, chosen: list[Entry]) -> Comparison:
    """Measure these plans in turn and keep what was found, unless they are those that were compared last."""
    kept = study.store.comparison()
    if kept is not None and [c.plan for c in kept.contenders] == [entry.plan for entry in chosen]:
        return kept
    study.watcher.phase(f"comparing {len(chosen)} plans in turn, {study.job.rounds} rounds")
    steps = steps_for(_ROUND_S, study.records, fewest=2)
    budget = Budget(warmup=2, steps=steps, timeout_s=study.job.timeout_s * len(chosen))
    measured = study.context.workers.compare([entry.plan for entry in chosen], study.job.rounds, budget)
    comparison = Comparison(contenders=contenders(chosen, measured), steps_per_round=budget.steps)
    study.store.write_comparison(comparison)
    return comparison


def trace_best(study: Study, comparison: Comparison) -> None:
    """Trace a step of a best plan that took the place of the search's and so was never a trial."""
    best = next((one.plan for one in comparison.contenders if one.name == BEST), None)
    if best is None or any(record.plan == best for record in study.records) or study.store.plan_timeline(best):
        return
    timeline = study.evaluator.evaluate(best, Budget(warmup=1, steps=1, timeout_s=study.job.timeout_s)).timeline
    if timeline.spans:
        study.store.write_plan_timeline(best, timeline.shifted(-timeline.spans[0].start_s))


def keep_best(study: Study, comparison: Comparison) -> str:
    """Keep the winner of the comparison for reuse; the file it is in."""
    chosen, first, context = winner(comparison), comparison.contenders[0], study.context
    gain = ratio(first, chosen) if first.name == DDP_DEFAULT else None
    best = BestPlan(
        workload=context.info.name,
        workload_fingerprint=context.info.fingerprint,
        cluster=context.cluster.name,
        cluster_fingerprint=context.cluster.fingerprint(),
        plan=chosen.plan,
        step_s=median(chosen.rounds_s),
        speedup_over_default=gain.value if gain else None,
        speedup_interval=(gain.low, gain.high) if gain else (),
        label=context.cluster.label,
        study=study.job.study_name,
        saved_at=now(),
        parameters=context.graph.shapes,
    )
    return str(save_best(study.job.results, best))
