"""Train with a plan: compare it with the default in the same job, then train, and say what came of it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Protocol

from autotune.jobs.context import JobContext, set_up
from autotune.jobs.job import Job, read_plan_file
from autotune.jobs.online_job import learned_file, make_controller, save_memory
from autotune.profilers.breakdown import break_down, largest_costs
from autotune.profilers.perfetto import check_trace_file, write_trace
from autotune.results.judge.stats import Ratio, speedup
from autotune.results.judge.training import Stretch, TrainingReport
from autotune.results.judge.wording import local_norms_warning
from autotune.results.show.decision_spans import with_decisions
from autotune.results.store.best import check_made_for, load_best
from autotune.results.store.decision import Decision
from autotune.results.store.forecast import Forecast
from autotune.results.store.record import BestPlan, TrialState
from autotune.runtime.control.mpi import Control
from autotune.runtime.placed.plan_job import plan_job
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import follow
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan, default_plan
from autotune.workloads.scenario import ChangingCluster
from autotune.workloads.split import bounds, even

_ROUND_S = 0.5
_PATIENCE = 20
"""Training may take this many times as long as the plan promises before it is given up."""


class Watcher(Protocol):
    """Whoever wants to know how far training is."""

    def phase(self, text: str) -> None:
        """Something other than training begins."""

    def begun(self, plan: Plan) -> None:
        """The first step is about to begin, by this plan."""

    def step_done(self, num_steps: int) -> None:
        """So many steps are done."""

    def decided(self, decision: Decision) -> None:
        """Something was seen, and training may go on by another plan."""


def train(job: Job, cluster: Cluster, control: Control, watcher: Watcher) -> TrainingReport | None:
    """Called by all ranks; the report is rank 0's."""
    context = set_up(job, cluster, control)
    if not control.is_leader:
        follow(control, context.runner)
        return None
    report = lead_training(job, context, watcher)
    context.workers.dismiss()
    return report


def lead_training(job: Job, context: JobContext, watcher: Watcher) -> TrainingReport:
    """Rank 0's part: choose the plan, compare, train, report."""
    if job.trace is not None:
        check_trace_file(job.trace)
    kept = find_plan(job, context)
    total = context.info.global_batch
    num_ranks = len(context.cluster.devices)
    kept.plan.validate(num_ranks=num_ranks, global_batch=total)
    kept.plan.check_runnable()
    if kept.plan.pipeline is not None:
        _check_stages(job, context, kept.plan)
    default = default_plan(even(total, bounds(num_ranks, total)), transport=context.transports[0])
    steps = min(max(2, math.ceil(_ROUND_S / kept.step_s)), 50)
    budget = Budget(warmup=2, steps=steps, timeout_s=job.timeout_s)
    watcher.phase(f"comparing the plan with torch DDP's defaults in turn, {job.rounds} rounds")
    ratio = compare_with_default(context, default, kept.plan, job.rounds, budget)
    begun = time.monotonic()
    limit_s = job.timeout_s + job.train_steps * _PATIENCE * kept.step_s
    controller = make_controller(job, context, kept.plan, watcher.decided) if job.online else None
    watcher.begun(kept.plan)
    done = context.workers.train(
        kept.plan,
        Budget(warmup=0, steps=job.train_steps, timeout_s=limit_s),
        watcher.step_done,
        watched=job.trace is not None,
        decide=controller.decide if controller is not None else None,
    )
    seconds = time.monotonic() - begun
    if controller is not None and controller.comm is not None:
        controller.comm.rest()
        save_memory(learned_file(job, context), controller.comm.memory)
    breakdown = break_down(done.measured.timeline)
    decisions = tuple(controller.decisions) if controller is not None else ()
    if job.trace is not None:
        write_trace(with_decisions(done.measured.timeline, decisions), job.trace)
    return TrainingReport(
        workload=context.info.name,
        cluster=context.cluster.name,
        label=context.cluster.label,
        scenario=job.replay or "",
        plan=kept.plan,
        num_steps=job.train_steps,
        seconds=seconds,
        samples_per_s=total * job.train_steps / sum(done.measured.steps_s),
        losses=done.losses,
        accuracy=done.accuracy,
        stretches=stretches(context.changing, done.measured.steps_s),
        speedup=ratio,
        ranks=done.measured.ranks,
        breakdown=breakdown,
        decisions=decisions,
        costs=largest_costs(breakdown),
        warnings=warnings(context, kept.plan),
        predicted=expected(job, context, kept.plan),
    )


def _check_stages(job: Job, context: JobContext, plan: Plan) -> None:
    """Refuse at the door what every rank would fail at."""
    if job.online:
        raise SpecError("the plan has pipeline stages, which cannot change while they train: train it without --online")
    plan_job(context.workload, plan, context.graph).assemble(context.workload.model())


def expected(job: Job, context: JobContext, plan: Plan) -> Forecast | None:
    """What a plan with pipeline stages should take, where costs are known: its schedule is a prediction to be checked."""
    if plan.pipeline is None:
        return None
    from autotune.jobs.predict import job_simulator  # noqa: PLC0415 - compiled code that rank 0 alone needs

    simulator = job_simulator(job, context)
    return None if simulator is None else simulator.forecast(plan)


def warnings(context: JobContext, plan: Plan) -> tuple[str, ...]:
    """What to know about the model that comes of this."""
    unsynchronised = 0 if plan.batch.sync_norm else context.info.num_local_norms
    text = local_norms_warning(unsynchronised, num_ranks=len(context.cluster.devices))
    return (text,) if text else ()


def stretches(changing: ChangingCluster | None, steps_s: Sequence[float]) -> tuple[Stretch, ...]:
    """A run cut where the trace changed the mix."""
    if changing is None:
        return ()
    mixes = changing.course(steps_s)
    cuts = [step for step in range(len(mixes)) if step == 0 or mixes[step] is not mixes[step - 1]]
    return tuple(
        Stretch(first=first, last=end - 1, step_s=fmean(steps_s[first:end]))
        for first, end in zip(cuts, [*cuts[1:], len(steps_s)], strict=True)
    )


def compare_with_default(context: JobContext, default: Plan, plan: Plan, rounds: int, budget: Budget) -> Ratio | None:
    """How much faster the plan is than the default, in turn; None where the default cannot run on these devices."""
    if context.workers.measure(default, budget).state is not TrialState.COMPLETE:
        return None
    before, ours = context.workers.compare([default, plan], rounds, budget)
    return speedup(before.steps_s, ours.steps_s)


def find_plan(job: Job, context: JobContext) -> BestPlan:
    """The plan that was asked for, made for this workload on this mix."""
    sweep = job.words(len(context.cluster.devices)).command("sweep")
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
