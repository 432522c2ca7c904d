"""The race: torch DDP in several forms and our searches, tuned with the same number of training steps, then compared.

Tuning is interleaved as well, one trial per contender, so that a disturbance of the machine affects all of them.
A new contender is one more entry in `entrants`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from autotune.jobs.context import JobContext, set_up
from autotune.jobs.evaluate import Evaluator, MeasuredEvaluator, measure_trial, now
from autotune.jobs.job import RaceJob
from autotune.jobs.network_profile import measure_all_reduces
from autotune.results.judge.race import DDP_TUNED_FP16, OURS, OURS_LOSSY, Entrant, Race, Tried
from autotune.results.judge.selection import fastest
from autotune.results.show.watcher import Watcher
from autotune.results.store.environment import describe_environment
from autotune.results.store.profile import CollectiveProfile
from autotune.results.store.record import AGAIN, DDP_TUNED, TrialRecord
from autotune.runtime.control.mpi import Control
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import Measurement, follow
from autotune.search.baselines import DefaultDdp, PlainOptuna, TunedDdp
from autotune.search.guided import GuidedSearch
from autotune.search.problem import Problem
from autotune.search.tuner import SearchOptions, Tuner
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import InfeasiblePlanError
from autotune.workloads.plan import Plan

if TYPE_CHECKING:
    from autotune.simulate.simulator import Simulator

_STEPS_PER_ROUND = 2


def entrants(problem: Problem, simulator: Simulator | None, *, trials: int, seed: int) -> list[Tuner]:
    """The contenders, in the order of the table."""
    return [
        DefaultDdp(problem),
        TunedDdp(problem),
        TunedDdp(problem, codec="fp16", name=DDP_TUNED_FP16),
        PlainOptuna(problem, seed=seed),
        GuidedSearch(problem, SearchOptions(seed=seed, trials=trials - 1), simulator=simulator, name=OURS),
        GuidedSearch(
            problem,
            SearchOptions(seed=seed, allow_lossy=True, trials=trials - 1),
            simulator=simulator,
            name=OURS_LOSSY,
        ),
    ]


@dataclass(kw_only=True, slots=True)
class Lane:
    """One contender while it tunes."""

    tuner: Tuner
    records: list[TrialRecord] = field(default_factory=list)
    done: bool = False
    """The tuner proposes no more."""


def race(job: RaceJob, cluster: Cluster, control: Control, watcher: Watcher) -> Race | None:
    """One workload on one cluster; called by all ranks. Rank 0 returns the result."""
    context = set_up(job, cluster, control)
    all_reduces = measure_all_reduces(context, control, timeout_s=job.timeout_s)
    if not control.is_leader:
        follow(control, context.runner)
        return None
    result = lead_race(job, context, watcher, all_reduces)
    context.workers.dismiss()
    return result


def lead_race(
    job: RaceJob, context: JobContext, watcher: Watcher, all_reduces: tuple[CollectiveProfile, ...] = ()
) -> Race:
    """Rank 0's part: every contender tunes, then the plans they chose are compared."""
    from autotune.jobs.predict import job_simulator  # noqa: PLC0415 - compiled code that rank 0 alone needs

    simulator = job_simulator(job, context, all_reduces)
    tuners = entrants(context.problem, simulator, trials=job.trials, seed=job.seed)
    lanes = [Lane(tuner=tuner) for tuner in tuners]
    budget = Budget(warmup=job.warmup, steps=job.steps, timeout_s=job.timeout_s, traced=False)
    watcher.start(1 + job.trials * (len(lanes) - 1), f"race: {context.info.name} on {context.cluster.name}")
    tune(lanes, MeasuredEvaluator(context.workers), budget, job.trials, watcher)
    compared = compare(lanes, context, job, watcher)
    return Race(
        workload=context.info,
        cluster=context.cluster,
        limit=context.limit(),
        seed=job.seed,
        steps_per_trial=budget.warmup + budget.steps,
        steps_per_round=_STEPS_PER_ROUND,
        entrants=compared,
        environment=describe_environment(),
        command=job.command,
        created_at=now(),
    )


def tune(lanes: list[Lane], evaluator: Evaluator, budget: Budget, trials: int, watcher: Watcher) -> None:
    """One trial per contender, one contender after another, until each has used its budget."""
    for _ in range(trials):
        for lane in lanes:
            if not lane.done:
                _one_trial(lane, evaluator, budget, watcher)


def _one_trial(lane: Lane, evaluator: Evaluator, budget: Budget, watcher: Watcher) -> None:
    proposal = lane.tuner.propose(lane.records)
    if proposal is None:
        lane.done = True
        return
    trial = measure_trial(evaluator, proposal, budget, number=len(lane.records))
    if trial.lost_rank is not None:
        raise trial.lost_rank
    lane.records.append(trial.record)
    lane.tuner.tell(trial.record)
    best = fastest(lane.records)
    watcher.trial_done(trial.record, best.step_s if best else None, None)


def compare(lanes: list[Lane], context: JobContext, job: RaceJob, watcher: Watcher) -> tuple[Entrant, ...]:
    """The plan that each contender chose by its own trials, interleaved; tuned DDP twice, which shows the noise."""
    chosen = [(lane, best) for lane in lanes if (best := lane.tuner.choice(lane.records)) is not None]
    if not chosen:
        raise InfeasiblePlanError("no contender found a plan that runs on these devices")
    again = [(lane, best) for lane, best in chosen if lane.tuner.name == DDP_TUNED]
    watcher.phase(f"comparing {len(chosen)} plans, interleaved, {job.rounds} rounds")
    plans = [best.plan for _, best in [*chosen, *again]]
    budget = Budget(warmup=2, steps=_STEPS_PER_ROUND, timeout_s=job.timeout_s * len(plans))
    measured = context.workers.compare(plans, job.rounds, budget)
    steps_per_trial = job.warmup + job.steps
    first = [
        _entrant(lane, best.plan, m, _tried(lane, steps_per_trial))
        for (lane, best), m in zip(chosen, measured, strict=False)
    ]
    repeated = [
        replace(_entrant(lane, best.plan, m), name=lane.tuner.name + AGAIN)
        for (lane, best), m in zip(again, measured[len(chosen) :], strict=True)
    ]
    return (*first, *repeated)


def _entrant(lane: Lane, plan: Plan, measured: Measurement, tried: tuple[Tried, ...] = ()) -> Entrant:
    return Entrant(
        name=lane.tuner.name,
        is_lossless=lane.tuner.is_lossless,
        plan=plan,
        rounds_s=measured.steps_s,
        ranks=measured.ranks,
        tried=tried,
    )


def _tried(lane: Lane, steps_per_trial: int) -> tuple[Tried, ...]:
    return tuple(
        Tried(num_steps=(record.number + 1) * steps_per_trial, step_s=record.step_s, plan=record.plan)
        for record in lane.records
    )
