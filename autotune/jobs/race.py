"""The race: what people use today and what we offer, tuned with the same number of training steps, then measured in turn.

Contenders take turns while they tune as well, one trial each, so that whatever disturbs the machine disturbs all of them.
What is built later joins the table as one more class in `entrants`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.jobs.context import JobContext, set_up
from autotune.jobs.job import Job
from autotune.jobs.network_profile import measure_all_reduces
from autotune.jobs.study import Watcher, as_record, now
from autotune.results.judge.race import DDP_TUNED_FP16, OURS, OURS_LOSSY, Entrant, Race, Tried
from autotune.results.judge.selection import fastest
from autotune.results.store.environment import describe_environment
from autotune.results.store.profile import CollectiveProfile
from autotune.results.store.record import AGAIN, DDP_TUNED, TrialRecord
from autotune.runtime.control.mpi import Control
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import follow
from autotune.search.problem import Problem
from autotune.search.tuner import DefaultDdp, GuidedSearch, PlainOptuna, SearchOptions, TunedDdp, Tuner
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import InfeasiblePlanError

if TYPE_CHECKING:
    from autotune.simulate.simulator import Simulator

_STEPS = 4
_STEPS_PER_ROUND = 2


def entrants(problem: Problem, simulator: Simulator | None, *, trials: int, seed: int) -> list[Tuner]:
    """Who takes part, in the order of the table."""
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


def race(job: Job, cluster: Cluster, control: Control, watcher: Watcher) -> Race | None:
    """One workload on one mix; called by all ranks. The result is rank 0's."""
    context = set_up(job, cluster, control)
    all_reduces = measure_all_reduces(context, control, timeout_s=job.timeout_s)
    if not control.is_leader:
        follow(control, context.runner)
        return None
    result = lead_race(job, context, watcher, all_reduces)
    context.workers.dismiss()
    return result


def lead_race(job: Job, context: JobContext, watcher: Watcher, all_reduces: tuple[CollectiveProfile, ...] = ()) -> Race:
    """Rank 0's part: everybody tunes, then the plans they chose are compared."""
    from autotune.jobs.predict import job_simulator  # noqa: PLC0415 - compiled code that rank 0 alone needs

    lanes = [
        Lane(tuner=tuner)
        for tuner in entrants(
            context.problem, job_simulator(job, context, all_reduces), trials=job.trials, seed=job.seed
        )
    ]
    budget = Budget(warmup=job.warmup, steps=job.steps or _STEPS, timeout_s=job.timeout_s, traced=False)
    watcher.start(1 + job.trials * (len(lanes) - 1), f"race: {context.info.name} on {context.cluster.name}")
    tune(lanes, context, budget, job.trials, watcher)
    return Race(
        workload=context.info,
        cluster=context.cluster,
        limit=context.limit(),
        seed=job.seed,
        steps_per_trial=budget.warmup + budget.steps,
        steps_per_round=_STEPS_PER_ROUND,
        entrants=compare(lanes, context, budget, job, watcher),
        environment=describe_environment(),
        command=job.command,
        created_at=now(),
    )


def tune(lanes: list[Lane], context: JobContext, budget: Budget, trials: int, watcher: Watcher) -> None:
    """A trial each in turn, until everybody's budget is used."""
    for _ in range(trials):
        for lane in lanes:
            if not lane.done:
                _one_trial(lane, context, budget, watcher)


def _one_trial(lane: Lane, context: JobContext, budget: Budget, watcher: Watcher) -> None:
    proposal = lane.tuner.propose(lane.records)
    if proposal is None:
        lane.done = True
        return
    started, begun = now(), time.monotonic()
    measured = context.workers.measure(proposal.plan, budget)
    record = as_record(len(lane.records), proposal, measured, started_at=started, duration_s=time.monotonic() - begun)
    lane.records.append(record)
    lane.tuner.heard(record)
    best = fastest(lane.records)
    watcher.trial_done(record, best.step_s if best else None, None)


def compare(lanes: list[Lane], context: JobContext, budget: Budget, job: Job, watcher: Watcher) -> tuple[Entrant, ...]:
    """The plan that each contender's own trials speak for, in turn; the peer twice, which shows the noise."""
    chosen = [(lane, best) for lane in lanes if (best := lane.tuner.choice(lane.records)) is not None]
    if not chosen:
        raise InfeasiblePlanError("no contender found a plan that runs on these devices")
    again = [(lane, best) for lane, best in chosen if lane.tuner.name == DDP_TUNED]
    watcher.phase(f"comparing {len(chosen)} plans in turn, {job.rounds} rounds")
    plans = [best.plan for _, best in [*chosen, *again]]
    patience = Budget(warmup=2, steps=_STEPS_PER_ROUND, timeout_s=budget.timeout_s * len(plans))
    measured = context.workers.compare(plans, job.rounds, patience)
    names = [lane.tuner.name for lane, _ in chosen] + [lane.tuner.name + AGAIN for lane, _ in again]
    steps_per_trial = budget.warmup + budget.steps
    return tuple(
        Entrant(
            name=name,
            is_lossless=lane.tuner.is_lossless,
            plan=best.plan,
            rounds_s=m.steps_s,
            ranks=m.ranks,
            tried=()
            if name.endswith(AGAIN)
            else tuple(
                Tried(num_steps=(r.number + 1) * steps_per_trial, step_s=r.step_s, plan=r.plan) for r in lane.records
            ),
        )
        for name, (lane, best), m in zip(names, [*chosen, *again], measured, strict=True)
    )
