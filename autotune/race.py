"""The race: what people use today and what we offer, tuned with the same number of training steps, then measured in turn.

Contenders take turns while they tune as well, one trial each, so that whatever disturbs the machine disturbs all of them.
What is built later joins the table as one more class in `entrants`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.bench import Bench, set_up
from autotune.contest import fastest
from autotune.job import Job
from autotune.network_profile import measure_all_reduces
from autotune.runtime.control import Control
from autotune.runtime.crew import follow
from autotune.runtime.trial import Effort
from autotune.study import Watcher, as_record, now
from autotune.tuners import DefaultDdp, GuidedSearch, HandTunedDdp, PlainOptuna, SearchOptions, Tuner
from results.environment import describe_environment
from results.profile import CollectiveProfile
from results.race import DDP_TUNED_FP16, OURS, OURS_LOSSY, Entrant, Race, Tried
from results.record import AGAIN, DDP_TUNED, TrialRecord
from workloads.cluster import Cluster
from workloads.errors import InfeasiblePlanError
from workloads.plan import MIB

if TYPE_CHECKING:
    from autotune.simulate.simulator import Simulator

HAND_BUCKETS_BYTES = (*(2**log2 for log2 in range(16, 24)), 25 * MIB)
"""With as many steps as the others have, a user can try every power of two, and DDP's own."""

_STEPS = 4
_STEPS_PER_ROUND = 2


def entrants(bench: Bench, simulator: Simulator | None, *, trials: int, seed: int) -> list[Tuner]:
    """Who takes part, in the order of the table."""
    return [
        DefaultDdp(bench),
        HandTunedDdp(bench, HAND_BUCKETS_BYTES),
        HandTunedDdp(bench, HAND_BUCKETS_BYTES, codec="fp16", name=DDP_TUNED_FP16),
        PlainOptuna(bench, seed=seed),
        GuidedSearch(bench, SearchOptions(seed=seed, trials=trials - 1), simulator=simulator, name=OURS),
        GuidedSearch(
            bench,
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
    bench = set_up(job, cluster, control)
    all_reduces = measure_all_reduces(bench, control, timeout_s=job.timeout_s)
    if not control.is_leader:
        follow(control, bench.runner)
        return None
    result = lead_race(job, bench, watcher, all_reduces)
    bench.crew.dismiss()
    return result


def lead_race(job: Job, bench: Bench, watcher: Watcher, all_reduces: tuple[CollectiveProfile, ...] = ()) -> Race:
    """Rank 0's part: everybody tunes, then the plans they chose are compared."""
    from autotune.predict import bench_simulator  # noqa: PLC0415 - compiled code that rank 0 alone needs

    lanes = [
        Lane(tuner=tuner)
        for tuner in entrants(bench, bench_simulator(job, bench, all_reduces), trials=job.trials, seed=job.seed)
    ]
    effort = Effort(warmup=job.warmup, steps=job.steps or _STEPS, timeout_s=job.timeout_s, traced=False)
    watcher.start(1 + job.trials * (len(lanes) - 1), f"race: {bench.info.name} on {bench.cluster.name}")
    tune(lanes, bench, effort, job.trials, watcher)
    return Race(
        workload=bench.info,
        cluster=bench.cluster,
        limit=bench.limit(),
        seed=job.seed,
        steps_per_trial=effort.warmup + effort.steps,
        steps_per_round=_STEPS_PER_ROUND,
        entrants=compare(lanes, bench, effort, job, watcher),
        environment=describe_environment(),
        command=job.command,
        created_at=now(),
    )


def tune(lanes: list[Lane], bench: Bench, effort: Effort, trials: int, watcher: Watcher) -> None:
    """A trial each in turn, until everybody's budget is used."""
    for _ in range(trials):
        for lane in lanes:
            if not lane.done:
                _one_trial(lane, bench, effort, watcher)


def _one_trial(lane: Lane, bench: Bench, effort: Effort, watcher: Watcher) -> None:
    proposal = lane.tuner.propose(lane.records)
    if proposal is None:
        lane.done = True
        return
    started, begun = now(), time.monotonic()
    measured = bench.crew.measure(proposal.plan, effort)
    record = as_record(len(lane.records), proposal, measured, started_at=started, duration_s=time.monotonic() - begun)
    lane.records.append(record)
    lane.tuner.heard(record)
    best = fastest(lane.records)
    watcher.trial_done(record, best.step_s if best else None, None)


def compare(lanes: list[Lane], bench: Bench, effort: Effort, job: Job, watcher: Watcher) -> tuple[Entrant, ...]:
    """The plan that each contender's own trials speak for, in turn; the peer twice, which shows the noise."""
    chosen = [(lane, best) for lane in lanes if (best := lane.tuner.choice(lane.records)) is not None]
    if not chosen:
        raise InfeasiblePlanError("no contender found a plan that runs on these devices")
    again = [(lane, best) for lane, best in chosen if lane.tuner.name == DDP_TUNED]
    watcher.phase(f"comparing {len(chosen)} plans in turn, {job.rounds} rounds")
    plans = [best.plan for _, best in [*chosen, *again]]
    patience = Effort(warmup=2, steps=_STEPS_PER_ROUND, timeout_s=effort.timeout_s * len(plans))
    measured = bench.crew.contest(plans, job.rounds, patience)
    names = [lane.tuner.name for lane, _ in chosen] + [lane.tuner.name + AGAIN for lane, _ in again]
    steps_per_trial = effort.warmup + effort.steps
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
