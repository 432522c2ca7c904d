"""The main job: measure the default and its hand-tuned form, search for better, compare, keep the best, report.

Rank 0 decides and writes; the other ranks carry out its orders. Every finished trial is on disk before the next begins,
so the same command resumes a sweep that was interrupted at any point.
"""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

from autotune.bench import Bench, set_up
from autotune.contest import Entry, contenders, entries
from autotune.job import Job
from autotune.network_profile import measure_all_reduces
from autotune.quality import guarded_codecs
from autotune.runtime.control import Control
from autotune.runtime.crew import follow
from autotune.runtime.trial import Effort
from autotune.study import Study, Watcher, now, open_study, record_trial, steps_for
from autotune.tuners import HAND_BUCKETS_BYTES, GuidedSearch, HandTunedDdp, SearchOptions, Tuner
from results.best import save_best
from results.compare import faster_without, ratio, winner
from results.profile import CollectiveProfile
from results.record import BEST, DDP_DEFAULT, BestPlan, Comparison, Role
from results.report import build_report
from results.report_data import SweepReport
from workloads.cluster import Cluster
from workloads.errors import InfeasiblePlanError
from workloads.plan import Plan

_ROUND_S = 0.5
_MOST_PUT_BACK = 2
"""Knobs, one after the other."""


def sweep(job: Job, clusters: tuple[Cluster, ...], control: Control, watcher: Watcher) -> list[SweepReport]:
    """Sweep every mix in turn; called by all ranks. Reports are rank 0's; the others return none."""
    reports = []
    for cluster in clusters:
        bench = set_up(job, cluster, control)
        all_reduces = measure_all_reduces(bench, control, timeout_s=job.timeout_s)
        if control.is_leader:
            reports.append(sweep_one(job, bench, watcher, all_reduces))
            bench.crew.dismiss()
        else:
            follow(control, bench.runner)
    return reports


def sweep_one(job: Job, bench: Bench, watcher: Watcher, all_reduces: tuple[CollectiveProfile, ...] = ()) -> SweepReport:
    """One workload on one mix, step by step."""
    from autotune.predict import bench_simulator, bench_staged  # noqa: PLC0415 - compiled code that rank 0 alone needs

    simulator = bench_simulator(job, bench, all_reduces)
    bench = replace(bench, staged=bench_staged(job, bench, simulator))
    study = open_study(job, bench, watcher, num_baselines=1 + len(HAND_BUCKETS_BYTES))
    study.simulator = simulator
    if simulator is None:
        watcher.phase("these devices state no speed and have no profile: searching without predictions")
    if job.allow_lossy:
        passed = guarded_codecs(bench, timeout_s=job.timeout_s, say=watcher.phase)
        bench = study.bench = replace(bench, codecs=passed)
    try:
        tune(study, HandTunedDdp(bench))
        options = SearchOptions(sampler=job.sampler, seed=job.seed, allow_lossy=job.allow_lossy, trials=job.trials)
        search = GuidedSearch(bench, options, study.store.search_db, simulator=study.simulator)
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
    effort = Effort(warmup=2, steps=steps, timeout_s=study.job.timeout_s * len(chosen))
    measured = study.bench.crew.contest([entry.plan for entry in chosen], study.job.rounds, effort)
    comparison = Comparison(contenders=contenders(chosen, measured), steps_per_round=effort.steps)
    study.store.write_comparison(comparison)
    return comparison


def trace_best(study: Study, comparison: Comparison) -> None:
    """Trace a step of a best plan that took the place of the search's and so was never a trial."""
    best = next((one.plan for one in comparison.contenders if one.name == BEST), None)
    if best is None or any(record.plan == best for record in study.records) or study.store.plan_timeline(best):
        return
    timeline = study.evaluator.evaluate(best, Effort(warmup=1, steps=1, timeout_s=study.job.timeout_s)).timeline
    if timeline.spans:
        study.store.write_plan_timeline(best, timeline.shifted(-timeline.spans[0].start_s))


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
        saved_at=now(),
        parameters=bench.graph.shapes,
    )
    return str(save_best(study.job.results, best))
