"""Measure plans drawn at random, or every plan of a grid, on the ranks of this job; run under mpirun. SEED is a name.

measure_plans.py WORKLOAD CLUSTER OUT.json random COUNT SEED
measure_plans.py WORKLOAD CLUSTER OUT.json grid
"""

from __future__ import annotations

import random
import sys
import time
from itertools import product
from pathlib import Path

from autotune.jobs.context import JobContext, set_up
from autotune.jobs.evaluate import as_record, now
from autotune.jobs.job import Job, check_job
from autotune.results.store.environment import describe_environment
from autotune.results.store.store import write_json
from autotune.runtime.control.start import start_control
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import follow
from autotune.simulate.factors import linear_ops
from autotune.simulate.limit import stated_sample_s
from autotune.space.comm_knobs import MIN_BUCKET_LOG2
from autotune.space.space import Proposal, Space
from autotune.workloads.plan import BatchPlan, CommPlan, Plan, default_plan
from autotune.workloads.split import even, proportional
from tests.benchmarks.drawn_plans import drawn_plans
from tests.benchmarks.measured import MeasuredPlans

WARMUP, STEPS = 2, 5
GRID_STEPS = 3
GRID_LOG_SHARES = (-0.5, 0.0, 0.5)
GRID_BUCKET_STEP = 2


def grid_plans(context: JobContext) -> list[Plan]:
    """Torch DDP's default; then buckets and transports with many splits: even, and every rank but the last with less than its
    speed calls for, as much, or more.
    """
    space = around_speeds(context)
    total, limits = space.global_batch, space.limits
    splits = {even(total, limits)}
    for log_shares in product(GRID_LOG_SHARES, repeat=len(space.reference) - 1):
        weights = [speed * 2**log_share for speed, log_share in zip(space.reference, (*log_shares, 0.0), strict=True)]
        splits.add(proportional(weights, total, limits))
    buckets = range(MIN_BUCKET_LOG2, space.max_bucket_log2 + 1, GRID_BUCKET_STEP)
    knobs = product(sorted(splits), context.transports, buckets)
    plans = [
        Plan(
            batch=BatchPlan(samples=samples),
            comm=CommPlan(transport=transport, bucket_bytes=2**bucket_log2),
        )
        for samples, transport, bucket_log2 in knobs
    ]
    return [default_plan(even(total, limits), transport=context.transports[0]), *plans]


def around_speeds(context: JobContext) -> Space:
    speeds = [1 / seconds for seconds in stated_sample_s(context.graph, context.cluster)]
    return context.problem.space(tuple(speed / max(speeds) for speed in speeds), allow_lossy=False)


def _drawn(context: JobContext, count: str, seed: str) -> list[Plan]:
    return drawn_plans(around_speeds(context), [op.name for op in linear_ops(context.graph)], int(count), seed)


def main() -> None:
    workload, cluster_name, out, how, *rest = sys.argv[1:]
    control = start_control()
    job = Job(workload=workload, clusters=(cluster_name,), results=Path(out).parent)
    (cluster,) = check_job(job, control.size)
    context = set_up(job, cluster, control)
    if not control.is_leader:
        follow(control, context.runner)
        return
    plans = _drawn(context, *rest) if how == "random" else grid_plans(context)
    random.Random(7).shuffle(plans)  # a disturbance of the machine must not coincide with a knob
    budget = Budget(warmup=WARMUP, steps=STEPS if how == "random" else GRID_STEPS, timeout_s=120, traced=False)
    records = []
    for number, plan in enumerate(plans):
        started_at, begun = now(), time.monotonic()
        measured = context.workers.measure(plan, budget)
        duration_s = time.monotonic() - begun
        records.append(as_record(number, Proposal(plan=plan), measured, started_at=started_at, duration_s=duration_s))
    kept = MeasuredPlans(
        workload=context.info,
        cluster=context.cluster,
        records=tuple(records),
        environment=describe_environment(),
        command=" ".join(["measure_plans", *sys.argv[1:3], how, *rest]),
    )
    write_json(Path(out), kept)
    context.workers.dismiss()


if __name__ == "__main__":
    main()
