"""Train with a plan: find the plan, compare it with the default in the same job, train, report."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from autotune.jobs.context import JobContext, set_up
from autotune.jobs.job import TrainJob, read_plan_file
from autotune.jobs.online_job import learned_file, make_controller, save_memory
from autotune.online.controller import Controller
from autotune.profilers.breakdown import break_down, largest_costs
from autotune.profilers.perfetto import check_trace_file, write_trace
from autotune.results.judge.stats import Ratio, speedup
from autotune.results.judge.training import Stretch, TrainingReport
from autotune.results.judge.wording import local_norms_warning
from autotune.results.show.decision_spans import with_decisions
from autotune.results.show.watcher import Watcher
from autotune.results.store.best import check_made_for, load_best
from autotune.results.store.decision import Decision
from autotune.results.store.forecast import Forecast
from autotune.results.store.record import BestPlan, TrialState
from autotune.runtime.control.mpi import Control
from autotune.runtime.placed.placed_job import check_placed
from autotune.runtime.placed.plan_job import plan_job
from autotune.runtime.train.embedding_trainer import check_embedding
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import Training, follow
from autotune.space.rank_sets import ALL_RANKS
from autotune.workloads.changes.scenario import ChangingCluster
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan, default_plan
from autotune.workloads.split import Bounds, bounds, even

_ROUND_S = 0.5
_PATIENCE = 20
"""Training ends with an error when it takes this many times as long as the plan's own step time predicts."""


def train(job: TrainJob, cluster: Cluster, control: Control, watcher: Watcher) -> TrainingReport | None:
    """Called by all ranks; rank 0 returns the report."""
    context = set_up(job, cluster, control)
    if not control.is_leader:
        follow(control, context.runner)
        return None
    report = lead_training(job, context, watcher)
    context.workers.dismiss()
    return report


def lead_training(job: TrainJob, context: JobContext, watcher: Watcher) -> TrainingReport:
    """Rank 0's part: find the plan, compare, train, report."""
    if job.trace is not None:
        check_trace_file(job.trace)
    kept = find_plan(job, context)
    check_plan(job, context, kept.plan)
    ratio = compare_with_default(job, context, kept, watcher)
    run = run_training(job, context, kept, watcher)
    if job.trace is not None:
        write_trace(with_decisions(run.done.measured.timeline, run.decisions), job.trace)
    return training_report(job, context, kept.plan, run, ratio)


def find_plan(job: TrainJob, context: JobContext) -> BestPlan:
    """The plan that the user named, made for this workload on this cluster."""
    sweep = job.commands(len(context.cluster.devices)).command("sweep")
    if job.plan == "best":
        kept = load_best(job.results, context.info.name, context.cluster.name, sweep=sweep)
    else:
        kept = read_plan_file(job.plan)
    check_made_for(
        kept,
        workload_fingerprint=context.info.fingerprint,
        cluster_fingerprint=context.cluster.fingerprint(),
        cluster=context.cluster.name,
        sweep=sweep,
    )
    return kept


def check_plan(job: TrainJob, context: JobContext, plan: Plan) -> None:
    """Refuse what no rank could run, before any rank starts."""
    plan.validate(num_ranks=len(context.cluster.devices), global_batch=context.info.global_batch)
    plan.check_runnable()
    if plan.is_placed:
        _check_stages(job, context, plan)
    if plan.embedding is not None:
        if job.online:
            raise SpecError(
                "the plan has embedding servers, which cannot change while they train: train it without --online"
            )
        check_embedding(context.workload)
    if job.online and 0 not in plan.used_ranks:
        raise SpecError(
            "the plan leaves out rank 0, which decides in a job that is retuned: train it without --online, or list another "
            "host first"
        )


def _check_stages(job: TrainJob, context: JobContext, plan: Plan) -> None:
    if job.online:
        raise SpecError(
            "the plan has pipeline stages or groups of ops, which cannot change while they train: train it without --online"
        )
    if plan.pipeline is not None:
        plan_job(context.workload, plan, context.graph).assemble(context.workload.model())
    else:
        check_placed(context.workload, plan, context.graph)


def compare_with_default(job: TrainJob, context: JobContext, kept: BestPlan, watcher: Watcher) -> Ratio | None:
    """The plan's speed over the default's, interleaved; None where the default cannot run on these devices."""
    total, num_ranks = context.info.global_batch, len(context.cluster.devices)
    default = default_plan(even(total, bounds(num_ranks, total)), transport=context.transports[0])
    steps = min(max(2, math.ceil(_ROUND_S / kept.step_s)), 50)
    budget = Budget(warmup=2, steps=steps, timeout_s=job.timeout_s)
    watcher.phase(f"comparing the plan with torch DDP's defaults, interleaved, {job.rounds} rounds")
    if context.workers.measure(default, budget).state is not TrialState.COMPLETE:
        return None
    before, ours = context.workers.compare([default, kept.plan], job.rounds, budget)
    return speedup(before.steps_s, ours.steps_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A training run, and what was decided in it."""

    done: Training
    seconds: float
    decisions: tuple[Decision, ...]


def run_training(job: TrainJob, context: JobContext, kept: BestPlan, watcher: Watcher) -> Run:
    """Train all steps; with --online the controller may change the plan, and stores what it learned."""
    begun_s = time.monotonic()
    limit_s = job.timeout_s + job.steps * _PATIENCE * kept.step_s
    controller = _controller(job, context, kept.plan, watcher) if job.online else None
    watcher.training_started(kept.plan)
    done = context.workers.train(
        kept.plan,
        Budget(warmup=0, steps=job.steps, timeout_s=limit_s),
        watcher.step_done,
        watched=job.trace is not None,
        decide=controller.decide if controller is not None else None,
    )
    seconds = time.monotonic() - begun_s
    if controller is None:
        return Run(done=done, seconds=seconds, decisions=())
    if controller.comm is not None:
        controller.comm.wait_for_tasks()
        save_memory(learned_file(job, context), controller.comm.memory)
    return Run(done=done, seconds=seconds, decisions=tuple(controller.decisions))


def _controller(job: TrainJob, context: JobContext, plan: Plan, watcher: Watcher) -> Controller:
    """For the ranks that the plan uses, as a job of their own; the others stay left out."""
    if not plan.leaves_out:
        return make_controller(job, context, plan, watcher.decided)
    used = plan.used_ranks
    limits = Bounds(
        minimums=tuple(context.limits.minimums[rank] for rank in used),
        caps=tuple(context.limits.caps[rank] for rank in used),
    )
    part = replace(context, cluster=context.cluster.part(used), limits=limits, rank_sets=ALL_RANKS)
    return make_controller(job, part, plan.part(used), watcher.decided)


def training_report(job: TrainJob, context: JobContext, plan: Plan, run: Run, ratio: Ratio | None) -> TrainingReport:
    """The run as the user sees it. `ratio`: the plan's speed over the default's."""
    measured = run.done.measured
    breakdown = break_down(measured.timeline)
    return TrainingReport(
        workload=context.info.name,
        cluster=context.cluster.name,
        label=context.cluster.label,
        scenario=job.replay or "",
        plan=plan,
        num_steps=job.steps,
        seconds=run.seconds,
        samples_per_s=context.info.global_batch * job.steps / sum(measured.steps_s),
        losses=run.done.losses,
        accuracy=run.done.accuracy,
        stretches=stretches(context.changing, measured.steps_s),
        speedup=ratio,
        ranks=measured.ranks,
        breakdown=breakdown,
        decisions=run.decisions,
        costs=largest_costs(breakdown),
        warnings=warnings(context, plan),
        predicted=expected(job, context, plan),
    )


def expected(job: TrainJob, context: JobContext, plan: Plan) -> Forecast | None:
    """The prediction for a plan with stages or groups of ops, where costs are stated or measured: its schedule rests on it."""
    if not plan.is_placed:
        return None
    from autotune.jobs.predict import job_simulator  # noqa: PLC0415 - compiled code that rank 0 alone needs

    simulator = job_simulator(job, context, placing=plan.placement is not None)
    return None if simulator is None else simulator.forecast(plan)


def warnings(context: JobContext, plan: Plan) -> tuple[str, ...]:
    """What affects the trained model."""
    unsynchronised = 0 if plan.batch.sync_norm else context.info.num_local_norms
    text = local_norms_warning(unsynchronised, num_ranks=len(context.cluster.devices))
    return (text,) if text else ()


def stretches(changing: ChangingCluster | None, steps_s: Sequence[float]) -> tuple[Stretch, ...]:
    """A run, cut where the scenario changed the cluster."""
    if changing is None:
        return ()
    clusters = changing.course(steps_s)
    cuts = [step for step in range(len(clusters)) if step == 0 or clusters[step] is not clusters[step - 1]]
    return tuple(
        Stretch(first=first, last=end - 1, step_s=fmean(steps_s[first:end]))
        for first, end in zip(cuts, [*cuts[1:], len(steps_s)], strict=True)
    )
