"""The main job: measure the default and its hand-tuned form, search for better, compare, keep the best, report.

Rank 0 decides and writes; the other ranks carry out its orders. Every finished trial is on disk before the next begins,
so the same command resumes a sweep that was interrupted at any point.
"""

from __future__ import annotations

import dataclasses
import time
from statistics import median
from typing import TYPE_CHECKING

from autotune.bench import Bench, set_up
from autotune.contest import contenders, entries, fastest
from autotune.job import Job
from autotune.runtime.control import Control
from autotune.runtime.crew import follow
from autotune.runtime.trial import Effort
from autotune.search.guide import fit_costs, relative_speeds
from autotune.simulate.limit import stated_sample_s
from autotune.study import Study, Watcher, now, open_study, record_trial, steps_for
from results.best import save_best
from results.compare import ratio, winner
from results.record import DDP_DEFAULT, BestPlan, Comparison, Role
from results.report import build_report
from results.report_data import SweepReport
from workloads.cluster import Cluster
from workloads.errors import InfeasiblePlanError
from workloads.plan import MIB, BatchPlan, default_plan
from workloads.split import balanced, even, proportional

if TYPE_CHECKING:
    from autotune.search.study import Search

_ROUND_S = 0.5
PEER_BUCKETS_BYTES = (MIB // 4, MIB, 4 * MIB, 25 * MIB)
"""Bucket sizes tried for DDP with a proportional split: what a careful user would try by hand."""


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
    study = open_study(job, bench, watcher, num_baselines=1 + len(PEER_BUCKETS_BYTES))
    try:
        measure_default(study)
        measure_peers(study)
        search(study)
        comparison = compare(study)
        best_file = keep_best(study, comparison)
        return build_report(study.store.info(), study.records, comparison, best_file)
    finally:
        study.store.close()


def measure_default(study: Study) -> None:
    """Torch DDP with its defaults and an even split: always first."""
    if study.default_record() is None:
        total, bench = study.bench.info.global_batch, study.bench
        no_caps = dataclasses.replace(bench.limits, caps=(total,) * len(bench.limits.caps))
        plan = default_plan(even(total, no_caps), transport=bench.transports[0])
        record_trial(study, plan, Role.DEFAULT)


def measure_peers(study: Study) -> None:
    """DDP as a careful user would tune it: samples in proportion to measured speed, several bucket sizes."""
    default = study.default_record()
    if default is None or default.step_s is None:
        return
    samples = proportional(reference_speeds(study), study.bench.info.global_batch, study.bench.limits)
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
    from autotune.search.study import Search  # noqa: PLC0415 - Optuna is rank 0's alone

    job = study.job
    space = study.space(reference_speeds(study))
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


def reference_speeds(study: Study) -> tuple[float, ...]:
    """How fast each rank is: as the default showed; if that could not run, as the cluster file states; else all alike."""
    default, bench = study.default_record(), study.bench
    if default is not None and (costs := fit_costs([default])) is not None:
        return relative_speeds(costs, default.plan.batch.samples)
    if bench.cluster.is_emulated:
        return tuple(1 / seconds for seconds in stated_sample_s(bench.graph, bench.cluster))
    return (1.0,) * len(bench.cluster.devices)


def propose_balanced(study: Study, engine: Search) -> None:
    """Queue the split that the measured speeds call for; the search chooses the other knobs."""
    if (costs := fit_costs(study.records)) is not None:
        engine.enqueue_split(balanced(costs, study.bench.info.global_batch, study.bench.limits))


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
        saved_at=now(),
    )
    return str(save_best(study.job.results, best))
