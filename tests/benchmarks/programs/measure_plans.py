"""Measure plans drawn at random, or every plan of a grid, on the ranks of this job; run under mpirun.

measure_plans.py WORKLOAD CLUSTER OUT.json random COUNT SEED
measure_plans.py WORKLOAD CLUSTER OUT.json grid
"""

from __future__ import annotations

import random
import sys
from itertools import product
from pathlib import Path

from autotune.bench import Bench, set_up
from autotune.job import Job, check_job
from autotune.runtime.control import start_control
from autotune.runtime.crew import follow
from autotune.runtime.trial import Effort
from autotune.simulate.limit import stated_sample_s
from autotune.space import MIN_BUCKET_LOG2, Proposal, Space
from autotune.study import as_record, now
from results.environment import describe_environment
from results.store import write_json
from tests.benchmarks.measured import MeasuredPlans
from workloads.plan import DDP_CODECS, ONE_ROUND_CODECS, BatchPlan, CommPlan, CompressionPlan, Plan, default_plan
from workloads.split import even, proportional

WARMUP, STEPS = 2, 5
GRID_STEPS = 3
GRID_TILTS = (-0.5, 0.0, 0.5)
GRID_BUCKET_STEP = 2


def random_plans(bench: Bench, count: int, seed: int) -> list[Plan]:
    """Splits of half to twice what each device's speed calls for, every power of two as bucket, any transport, codec and
    reducer: good plans and bad ones, as nobody knows beforehand which is which.
    """
    draw = random.Random(seed)
    space = around_speeds(bench)
    plans: dict[Plan, None] = {}
    while len(plans) < count:
        weights = [speed * 2 ** draw.uniform(-1, 1) for speed in space.reference]
        reducer = draw.choice(("ddp", "bucketed", "bucketed"))
        plan = Plan(
            batch=BatchPlan(samples=proportional(weights, space.global_batch, space.limits)),
            comm=CommPlan(
                reducer=reducer,
                transport=draw.choice(bench.transports),
                bucket_bytes=2 ** draw.randint(MIN_BUCKET_LOG2, space.max_bucket_log2),
            ),
            compression=CompressionPlan(codec=draw.choice(DDP_CODECS if reducer == "ddp" else ONE_ROUND_CODECS)),
        )
        plans[plan] = None
    return list(plans)


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


def main() -> None:
    workload, cluster_name, out, how, *numbers = sys.argv[1:]
    control = start_control()
    job = Job(workload=workload, clusters=(cluster_name,), results=Path(out).parent)
    (cluster,) = check_job(job, control.size)
    bench = set_up(job, cluster, control)
    if not control.is_leader:
        follow(control, bench.runner)
        return
    plans = random_plans(bench, *map(int, numbers)) if how == "random" else grid_plans(bench)
    random.Random(7).shuffle(plans)  # what disturbs the machine for a while must not look like a knob
    effort = Effort(warmup=WARMUP, steps=STEPS if how == "random" else GRID_STEPS, timeout_s=120, traced=False)
    records = []
    for number, plan in enumerate(plans):
        measured = bench.crew.measure(plan, effort)
        records.append(as_record(number, Proposal(plan=plan), measured, started_at=now(), duration_s=0.0))
    kept = MeasuredPlans(
        workload=bench.info,
        cluster=bench.cluster,
        records=tuple(records),
        environment=describe_environment(),
        command=" ".join(["measure_plans", *sys.argv[1:3], how, *numbers]),
    )
    write_json(Path(out), kept)
    bench.crew.dismiss()


if __name__ == "__main__":
    main()
