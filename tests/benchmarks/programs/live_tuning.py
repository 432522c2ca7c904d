"""Run by mpirun in a lab: our search with at most 200 training steps, then its plan beside the best of a recorded grid.

live_tuning.py GRID.json OUT.json: workload and cluster are the grid's. The plan that the search found, the grid's best and
torch DDP's default are interleaved, so the grid's best is measured again without its selection bias.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from autotune.jobs.context import JobContext, set_up
from autotune.jobs.evaluate import MeasuredEvaluator
from autotune.jobs.job import Job, check_job
from autotune.jobs.network_profile import measure_all_reduces
from autotune.jobs.predict import job_simulator
from autotune.jobs.race import Lane, tune
from autotune.results.judge.stats import speedup
from autotune.results.show.progress import SweepProgress
from autotune.results.store.profile import CollectiveProfile
from autotune.results.store.store import read_json, write_json
from autotune.runtime.control.start import start_control
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import follow
from autotune.search.guided import GuidedSearch
from autotune.search.tuner import SearchOptions
from tests.benchmarks.measured import MeasuredPlans
from tests.benchmarks.tuning_cost import BUDGET, NEAR, STEPS, LiveRun, best_of, default_of

ROUNDS, STEPS_PER_ROUND = 10, 2
STEPS_PER_TRIAL = BUDGET.warmup + BUDGET.steps


def search(job: Job, context: JobContext, all_reduces: tuple[CollectiveProfile, ...]) -> Lane:
    trials = STEPS // STEPS_PER_TRIAL
    options = SearchOptions(trials=trials - 1)
    lane = Lane(tuner=GuidedSearch(context.problem, options, simulator=job_simulator(job, context, all_reduces)))
    progress = SweepProgress(Console(stderr=True, force_terminal=False))
    progress.start(trials, f"live: {context.info.name} on {context.cluster.name}")
    tune([lane], MeasuredEvaluator(context.workers), BUDGET, trials, progress)
    return lane


def live(context: JobContext, grid: MeasuredPlans, lane: Lane) -> LiveRun:
    chosen = lane.tuner.choice(lane.records)
    assert chosen is not None
    plans = [default_of(grid).plan, best_of(grid).plan, chosen.plan]
    default, best, ours = context.workers.compare(
        plans, ROUNDS, Budget(warmup=2, steps=STEPS_PER_ROUND, timeout_s=600, traced=False)
    )
    near_s = min(record.step_s for record in lane.records if record.step_s is not None) / NEAR
    arrived = next(record.number for record in lane.records if record.step_s is not None and record.step_s <= near_s)
    return LiveRun(
        num_steps=len(lane.records) * STEPS_PER_TRIAL,
        steps_to_95_of_own_best=(arrived + 1) * STEPS_PER_TRIAL,
        plan=chosen.plan,
        of_grid_best=speedup(best.steps_s, ours.steps_s),
        of_default=speedup(default.steps_s, ours.steps_s),
    )


def main() -> None:
    grid_file, out = map(Path, sys.argv[1:])
    grid = read_json(MeasuredPlans, grid_file)
    control = start_control()
    job = Job(workload=grid.workload.name, clusters=(grid.cluster.name,), results=out.parent)
    (cluster,) = check_job(job, control.size)
    context = set_up(job, cluster, control)
    all_reduces = measure_all_reduces(context, control, timeout_s=job.timeout_s)
    if not control.is_leader:
        follow(control, context.runner)
        return
    found = live(context, grid, search(job, context, all_reduces))
    context.workers.dismiss()
    write_json(out, found)


main()
