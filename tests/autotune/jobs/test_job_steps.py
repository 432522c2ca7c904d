"""Sweep, race and train step by step on rank 0, with workers that compute times instead of running plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from autotune.jobs.context import JobContext, capture_workload, job_bounds, workload_info
from autotune.jobs.job import Job, RaceJob, SweepJob, TrainJob
from autotune.jobs.race import lead_race
from autotune.jobs.study import store_of
from autotune.jobs.sweep import sweep_one
from autotune.jobs.train import lead_training
from autotune.profilers.timeline import Span, Timeline
from autotune.results.judge.race import DDP_TUNED_FP16, OURS, OURS_LOSSY
from autotune.results.show.watcher import Watcher
from autotune.results.store.best import load_best, save_best
from autotune.results.store.fits import TransferFit
from autotune.results.store.profile import CollectiveProfile
from autotune.results.store.record import AGAIN, BEST, DDP_DEFAULT, DDP_TUNED, RankResult, TrialRecord, TrialState
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import LostRankError, Measurement, Training
from autotune.simulate.roofline import compute_s
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import Plan, default_plan
from autotune.workloads.registry import load_workload
from autotune.workloads.split import even

WORKLOAD, CLUSTER = "mlp-tiny", load_cluster("mixed4")


class ComputedWorkers:
    """A step takes as long as its slowest rank computes."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.measured: list[Plan] = []
        self.num_comparisons = 0

    def measure(self, plan: Plan, budget: Budget) -> Measurement:
        self.measured.append(plan)
        return self._measurement(plan, budget.steps)

    def compare(self, plans: Sequence[Plan], rounds: int, _budget: Budget) -> list[Measurement]:
        self.num_comparisons += 1
        return [self._measurement(plan, rounds) for plan in plans]

    def train(self, plan: Plan, budget: Budget, on_step: Callable[[int], None], **_options: Any) -> Training:
        for step in range(budget.steps):
            on_step(step + 1)
        return Training(measured=self._measurement(plan, budget.steps), losses=(1.0,) * budget.steps, accuracy=None)

    def _measurement(self, plan: Plan, count: int) -> Measurement:
        samples = plan.batch.samples
        times = [compute_s(self._graph, device, n) for device, n in zip(CLUSTER.devices, samples, strict=True)]
        ranks = tuple(
            RankResult(
                rank=rank, device=device.name, samples=n, compute_s=s, wait_s=0.0, cpu_s=s, peak_memory_bytes=1_000
            )
            for rank, (device, n, s) in enumerate(zip(CLUSTER.devices, samples, times, strict=True))
        )
        span = Span(rank=0, track="compute", kind="forward", op="forward", start_s=1.0, end_s=1.0 + times[0])
        return Measurement(
            state=TrialState.COMPLETE,
            steps_s=tuple(max(times) * (1.001 if number % 2 else 1.0) for number in range(count)),
            ranks=ranks,
            timeline=Timeline(spans=(span,)),
        )


class Events(Watcher):
    """Notes what a job reports."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def phase(self, text: str) -> None:
        self.seen.append(text.partition(",")[0])

    def start(self, total_trials: int, title: str) -> None:
        self.seen.append(f"start {total_trials}: {title}")

    def trial_done(self, record: TrialRecord, best_step_s: float | None, default_step_s: float | None) -> None:
        self.seen.append("trial")

    def training_started(self, plan: Plan) -> None:
        self.seen.append("training")

    def step_done(self, num_steps: int) -> None:
        self.seen.append(f"step {num_steps}")


def context_of(job: Job) -> tuple[JobContext, ComputedWorkers]:
    workload = load_workload(job.workload, job.options)
    graph = capture_workload(workload, job.seed)
    workers = ComputedWorkers(graph)
    context = JobContext(
        workload=workload,
        info=workload_info(job, workload.global_batch, graph),
        graph=graph,
        cluster=CLUSTER,
        groups=cast("Any", None),
        rank_context=cast("Any", None),
        runner=cast("Any", None),
        workers=cast("Any", workers),
        limits=job_bounds(workload, graph, CLUSTER, total=workload.global_batch),
        transports=("gloo",),
    )
    return context, workers


def sweep_job(tmp_path: Path) -> SweepJob:
    return SweepJob(workload=WORKLOAD, clusters=(CLUSTER.name,), results=tmp_path, trials=3, steps=2)


def test_a_sweep_measures_searches_compares_keeps_and_reports(tmp_path: Path) -> None:
    job, events = sweep_job(tmp_path), Events()
    context, workers = context_of(job)
    report = sweep_one(job, context, events)
    assert events.seen[0].endswith("mlp-tiny on mixed4")
    assert events.seen.count("trial") == sum(report.counts.values()) == report.counts["complete"]
    assert events.seen[-1].startswith("comparing") or "replaces the best one" in " ".join(events.seen)
    assert [row.name for row in report.comparison] == [DDP_DEFAULT, DDP_TUNED, BEST]
    assert workers.num_comparisons >= 1
    assert load_best(tmp_path, WORKLOAD, CLUSTER.name).study == WORKLOAD


def test_a_finished_sweep_measures_nothing_again(tmp_path: Path) -> None:
    job = sweep_job(tmp_path)
    first = sweep_one(job, context_of(job)[0], Watcher())
    context, workers = context_of(job)
    again = sweep_one(job, context, Watcher())
    assert (workers.measured, workers.num_comparisons) == ([], 0)
    assert (again.headline, again.counts) == (first.headline, first.counts)


def test_a_trial_that_lost_a_rank_is_recorded_before_the_job_ends(tmp_path: Path) -> None:
    job = sweep_job(tmp_path)
    context, workers = context_of(job)

    def silent(_plan: Plan, _budget: Budget) -> Measurement:
        raise LostRankError(Measurement(state=TrialState.FAILED, reason="rank 2 did not answer in time"))

    workers.measure = silent  # type: ignore[method-assign]
    with pytest.raises(LostRankError):
        sweep_one(job, context, Watcher())
    records = tmp_path / WORKLOAD / CLUSTER.name / "records.jsonl"
    assert "rank 2 did not answer in time" in records.read_text(encoding="utf-8")


def test_a_resumed_study_predicts_from_the_network_it_was_begun_with(tmp_path: Path) -> None:
    """Other measurements could lead to other sets of ranks or stages, which would be another search space."""
    job, context = sweep_job(tmp_path), context_of(sweep_job(tmp_path))[0]
    fit = TransferFit.through([(1024, 1e-4), (1 << 20, 2e-3), (1 << 22, 7e-3)])
    measured = CollectiveProfile(kind="all-reduce", transport="gloo", num_ranks=4, fit=fit)
    sweep_one(job, context, Watcher(), (measured,))
    assert store_of(job, context).info().all_reduces == (measured,)
    described = store_of(job, context).info().space
    assert json.loads(json.dumps(described)) == described, "what is read again equals what was written"
    again, workers = context_of(job)
    sweep_one(job, again, Watcher(), (measured,))
    assert not workers.measured


def test_a_plan_that_ends_jobs_without_a_word_is_given_up_at_the_third(tmp_path: Path) -> None:
    """As where the kernel ends a rank that is out of memory: the job has no chance to write a record."""
    job = sweep_job(tmp_path)

    def killed(plan: Plan, budget: Budget) -> Measurement:
        if plan.batch.samples != even_split.batch.samples:
            raise KeyboardInterrupt
        return measure(plan, budget)

    deadly = []
    for _ in range(3):
        context, workers = context_of(job)
        even_split, measure = default_plan(even(context.info.global_batch, context.limits)), workers.measure
        workers.measure = killed  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            sweep_one(job, context, Watcher())
        deadly.append((tmp_path / WORKLOAD / CLUSTER.name / "records.jsonl").read_text().count("jobs ended while"))
    assert deadly == [0, 0, 1], "the third job gives it up, and goes on to the next"


def test_the_default_is_measured_again_where_it_fails(tmp_path: Path) -> None:
    job = sweep_job(tmp_path)
    context, workers = context_of(job)
    measure, failures = workers.measure, [Measurement(state=TrialState.FAILED, reason="link down")]

    def once_failing(plan: Plan, budget: Budget) -> Measurement:
        return failures.pop() if failures else measure(plan, budget)

    workers.measure = once_failing  # type: ignore[method-assign]
    report = sweep_one(job, context, Watcher())
    assert [row.name for row in report.comparison] == [DDP_DEFAULT, DDP_TUNED, BEST]
    assert report.counts["failed"] == 1


def test_a_side_study_does_not_replace_a_better_plan(tmp_path: Path) -> None:
    sweep_one(sweep_job(tmp_path), context_of(sweep_job(tmp_path))[0], Watcher())
    kept = load_best(tmp_path, WORKLOAD, CLUSTER.name)
    assert kept.speedup_over_default is not None
    save_best(tmp_path, replace(kept, study="better", speedup_over_default=9.0, speedup_interval=(8.9, 9.1)))
    job, events = replace(sweep_job(tmp_path), study="side"), Events()
    sweep_one(job, context_of(job)[0], events)
    assert load_best(tmp_path, WORKLOAD, CLUSTER.name).study == "better"
    assert "the plan of study 'better' stays the kept one: 9.00x the default" in " ".join(events.seen)


def test_a_race_tunes_every_contender_and_compares_what_they_chose(tmp_path: Path) -> None:
    job, events = RaceJob(workload=WORKLOAD, clusters=(CLUSTER.name,), results=tmp_path, trials=2, steps=2), Events()
    context, workers = context_of(job)
    race = lead_race(job, context, events)
    names = [one.name for one in race.entrants]
    assert {DDP_DEFAULT, DDP_TUNED, DDP_TUNED_FP16, OURS, OURS_LOSSY} <= set(names)
    assert names[-1] == DDP_TUNED + AGAIN
    assert race.entrants[-1].tried == ()
    assert [tried.num_steps for tried in race.entrants[1].tried] == [4, 8]
    assert (len(workers.measured), workers.num_comparisons) == (events.seen.count("trial"), 1)


def test_training_compares_with_the_default_and_reports_every_step(tmp_path: Path) -> None:
    sweep = sweep_job(tmp_path)
    sweep_one(sweep, context_of(sweep)[0], Watcher())
    job, events = TrainJob(workload=WORKLOAD, clusters=(CLUSTER.name,), results=tmp_path, steps=3), Events()
    report = lead_training(job, context_of(job)[0], events)
    assert events.seen == ["comparing the plan with torch DDP's defaults", "training", "step 1", "step 2", "step 3"]
    assert (report.num_steps, report.losses, report.decisions) == (3, (1.0, 1.0, 1.0), ())
    assert report.speedup is not None
    assert report.speedup.value > 1
