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

from autotune.bench import Bench, set_up
from autotune.job import Job, check_job
from autotune.runtime.control import start_control
from autotune.runtime.crew import follow
from autotune.runtime.trial import Effort
from autotune.simulate.factors import linear_ops
from autotune.simulate.limit import stated_sample_s
from autotune.space import MIN_BUCKET_LOG2, Proposal, Space
from autotune.study import as_record, now
from results.environment import describe_environment
from results.store import write_json
from tests.benchmarks.drawn_plans import drawn_plans
from tests.benchmarks.measured import MeasuredPlans
from workloads.plan import BatchPlan, CommPlan, Plan, default_plan
from workloads.split import even, proportional

WARMUP, STEPS = 2, 5
GRID_STEPS = 3
GRID_TILTS = (-0.5, 0.0, 0.5)
GRID_BUCKET_STEP = 2


def grid_plans(bench: Bench) -> list[Plan]:
    """Torch DDP's default; then buckets and transports with many splits: even, and every rank but the last with less than its
    speed calls for, as much, or more.
    """
    space = around_speeds(bench)
    total, limits = space.global_batch, space.limits
    splits = {even(total, limits)}
    for tilts in product(GRID_TILTS, repeat=len(space.reference) - 1):
        weights = [speed * 2**tilt for speed, tilt in zip(space.reference, (*tilts, 0.0), strict=True)]
        splits.add(proportional(weights, total, limits))
    buckets = range(MIN_BUCKET_LOG2, space.max_bucket_log2 + 1, GRID_BUCKET_STEP)
    knobs = product(sorted(splits), bench.transports, buckets)
    plans = [
        Plan(
            batch=BatchPlan(samples=samples),
            comm=CommPlan(transport=transport, bucket_bytes=2**bucket_log2),
        )
        for samples, transport, bucket_log2 in knobs
    ]
    return [default_plan(even(total, limits), transport=bench.transports[0]), *plans]


def around_speeds(bench: Bench) -> Space:
    speeds = [1 / seconds for seconds in stated_sample_s(bench.graph, bench.cluster)]
    return bench.space(tuple(speed / max(speeds) for speed in speeds), allow_lossy=False)


def _drawn(bench: Bench, count: str, seed: str) -> list[Plan]:
    return drawn_plans(around_speeds(bench), [op.name for op in linear_ops(bench.graph)], int(count), seed)


def main() -> None:
    workload, cluster_name, out, how, *rest = sys.argv[1:]
    control = start_control()
    job = Job(workload=workload, clusters=(cluster_name,), results=Path(out).parent)
    (cluster,) = check_job(job, control.size)
    bench = set_up(job, cluster, control)
    if not control.is_leader:
        follow(control, bench.runner)
        return
    plans = _drawn(bench, *rest) if how == "random" else grid_plans(bench)
    random.Random(7).shuffle(plans)  # what disturbs the machine for a while must not look like a knob
    effort = Effort(warmup=WARMUP, steps=STEPS if how == "random" else GRID_STEPS, timeout_s=120, traced=False)
    records = []
    for number, plan in enumerate(plans):
        started_at, begun = now(), time.monotonic()
        measured = bench.crew.measure(plan, effort)
        duration_s = time.monotonic() - begun
        records.append(as_record(number, Proposal(plan=plan), measured, started_at=started_at, duration_s=duration_s))
    kept = MeasuredPlans(
        workload=bench.info,
        cluster=bench.cluster,
        records=tuple(records),
        environment=describe_environment(),
        command=" ".join(["measure_plans", *sys.argv[1:3], how, *rest]),
    )
    write_json(Path(out), kept)
    bench.crew.dismiss()


if __name__ == "__main__":
    main()
