"""The main job: measure DDP's default and tuned DDP, search for better, compare, keep the best, report.

Rank 0 decides and writes; the other ranks carry out its orders. Every finished trial is on disk before the next begins,
so the same command resumes a sweep that was interrupted at any point.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from statistics import median

from autotune.jobs.ablation import Entry, contenders, entries
from autotune.jobs.context import JobContext, set_up
from autotune.jobs.evaluate import now
from autotune.jobs.job import SweepJob
from autotune.jobs.network_profile import measure_all_reduces
from autotune.jobs.quality import guarded_codecs
from autotune.jobs.study import Study, open_study, record_trial, steps_for, store_of
from autotune.results.judge.compare import faster_without, ratio, winner
from autotune.results.judge.report import build_report
from autotune.results.judge.report_data import SweepReport
from autotune.results.show.watcher import Watcher
from autotune.results.store.best import best_path, better_kept, save_best
from autotune.results.store.profile import CollectiveProfile
from autotune.results.store.record import BEST, DDP_DEFAULT, BestPlan, Comparison, Role
from autotune.results.text.numbers import format_times
from autotune.runtime.control.mpi import Control
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import follow
from autotune.search.baselines import TunedDdp, num_baselines
from autotune.search.methods import METHODS
from autotune.search.tables_on_servers import TablesOnServers, without_servers
from autotune.search.tuner import SearchOptions, Tuner
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import InfeasiblePlanError, StoreError
from autotune.workloads.plan import Plan
from autotune.workloads.plan.choices import load

_ROUND_S = 0.5
_MOST_RESETS = 2
"""Knobs of the best plan that may be reset to their defaults, one after another."""


def sweep(job: SweepJob, clusters: tuple[Cluster, ...], control: Control, watcher: Watcher) -> list[SweepReport]:
    """Sweep one cluster after another; called by all ranks. Rank 0 returns the reports, the others none."""
    reports = []
    for cluster in clusters:
        context = set_up(job, cluster, control)
        all_reduces = _all_reduces(job, context, control)
        if control.is_leader:
            reports.append(sweep_one(job, context, watcher, all_reduces))
            context.workers.dismiss()
        else:
            follow(control, context.runner)
    return reports


def _all_reduces(job: SweepJob, context: JobContext, control: Control) -> tuple[CollectiveProfile, ...]:
    """As the study measured them when it began; else measured now, by all ranks."""
    kept: tuple[CollectiveProfile, ...] = ()
    store = store_of(job, context)
    if control.is_leader and store.exists():
        with suppress(StoreError):  # which opening the study reports, when the others await orders
            kept = store.info().all_reduces
    if control.broadcast(bool(kept)):
        return kept
    return measure_all_reduces(context, control, timeout_s=job.timeout_s)


def sweep_one(
    job: SweepJob, context: JobContext, watcher: Watcher, all_reduces: tuple[CollectiveProfile, ...] = ()
) -> SweepReport:
    """One workload on one cluster, step by step, on rank 0."""
    from autotune.jobs.predict import job_pipelines, job_rank_sets, job_simulator  # noqa: PLC0415 - compiled code that rank 0 alone needs

    simulator = job_simulator(job, context, all_reduces)
    context = replace(context, codecs=job.codecs, staged=job_pipelines(job, context, simulator))
    context = replace(context, rank_sets=job_rank_sets(job, context, simulator))
    study = open_study(job, context, watcher, simulator, all_reduces, num_baselines=num_baselines(context.problem))
    if simulator is None:
        watcher.phase("these devices state no speed and have no profile: searching without predictions")
    try:
        if job.allow_lossy:
            study.context = replace(context, codecs=guarded_codecs(context, watcher, timeout_s=job.timeout_s))
        tune(study, TunedDdp(study.context.problem))
        search = search_of(study)
        tune(study, search, trials=job.trials, time_s=job.time_s)
        if hasattr(context.workload, "lookups"):
            search = TablesOnServers(search)
            tune(study, search)
        comparison = compare(study, search)
        best_file = keep_best(study, comparison)
        trace_best(study, comparison)
        return build_report(study.store.info(), study.records, comparison, best_file, results=job.results)
    finally:
        study.store.close()


def search_of(study: Study) -> Tuner:
    """The search of this job, with its own storage in the study's folder."""
    job = study.job
    options = SearchOptions(sampler=job.sampler, seed=job.seed, allow_lossy=job.allow_lossy, trials=job.trials)
    make = load(METHODS[job.sampler].measured_by)
    tuner: Tuner = make(study.context.problem, options, study.store.search_db, study.simulator)
    return tuner


def tune(study: Study, tuner: Tuner, *, trials: int | None = None, time_s: float | None = None) -> None:
    """Propose, measure and record, until the tuner proposes no more or the budget of searched trials is used."""
    deadline = time.monotonic() + time_s if time_s is not None else None
    while deadline is None or time.monotonic() < deadline:
        if trials is not None and sum(record.role is Role.SEARCH for record in study.records) >= trials:
            return
        given = study.records if isinstance(tuner, TablesOnServers) else without_servers(study.records)
        proposal = tuner.propose(given)
        if proposal is None:
            if trials is not None:
                study.watcher.phase(tuner.enough or "every plan of the space has been measured")
            return
        tuner.tell(record_trial(study, proposal))


def compare(study: Study, search: Tuner) -> Comparison:
    """Compare the default, tuned DDP, the best plan and its ablations, interleaved within this job; once per best plan.

    Where a knob of the best plan costs speed, it is reset to its default, and that plan is compared with all others anew.
    """
    best = search.choice(study.records)
    if best is None:
        reasons = sorted({record.reason for record in study.records if record.reason})
        raise InfeasiblePlanError(f"no plan could be measured: {'; '.join(reasons[:3])}")
    comparison = interleaved(study, entries(study.records, _as_last_compared(study, best.plan)))
    for _ in range(_MOST_RESETS):
        simpler = faster_without(comparison)
        if simpler is None:
            break
        study.watcher.phase(f"faster without its {simpler.reverts}: that plan replaces the best one")
        comparison = interleaved(study, entries(study.records, simpler.plan))
    return comparison


def _as_last_compared(study: Study, best: Plan) -> Plan:
    """The best plan, or the ablation that replaced it when it was last compared."""
    kept, variants = study.store.comparison(), {entry.plan for entry in entries(study.records, best) if entry.reverts}
    last = [one.plan for one in kept.contenders if one.name == BEST] if kept is not None else []
    return next((plan for plan in last if plan in variants), best)


def interleaved(study: Study, chosen: list[Entry]) -> Comparison:
    """Measure these plans interleaved and store the result, unless the same plans were compared last."""
    kept = study.store.comparison()
    if kept is not None and [c.plan for c in kept.contenders] == [entry.plan for entry in chosen]:
        return kept
    study.watcher.phase(f"comparing {len(chosen)} plans, interleaved, {study.job.rounds} rounds")
    steps = steps_for(_ROUND_S, study.records, fewest=2)
    budget = Budget(warmup=2, steps=steps, timeout_s=study.job.timeout_s * len(chosen))
    measured = study.context.workers.compare([entry.plan for entry in chosen], study.job.rounds, budget)
    comparison = Comparison(contenders=contenders(chosen, measured), steps_per_round=budget.steps)
    study.store.write_comparison(comparison)
    return comparison


def trace_best(study: Study, comparison: Comparison) -> None:
    """Trace a step of a best plan that replaced the search's and so was never a trial."""
    best = next((one.plan for one in comparison.contenders if one.name == BEST), None)
    if best is None or any(record.plan == best for record in study.records) or study.store.plan_timeline(best):
        return
    timeline = study.evaluator.evaluate(best, Budget(warmup=1, steps=1, timeout_s=study.job.timeout_s)).timeline
    if timeline.spans:
        study.store.write_plan_timeline(best, timeline.shifted(-timeline.spans[0].start_s))


def keep_best(study: Study, comparison: Comparison) -> str:
    """Keep the winner of the comparison for reuse; returns its file."""
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
    better = better_kept(study.job.results, best)
    if better is not None:
        study.watcher.phase(
            f"the plan of study {better.study!r} stays the kept one: {format_times(better.speedup_over_default)} the "
            f"default, this one {format_times(best.speedup_over_default)}"
        )
        return str(best_path(study.job.results, best.workload, best.cluster))
    return str(save_best(study.job.results, best))
