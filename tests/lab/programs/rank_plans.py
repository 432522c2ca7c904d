"""Run by mpirun, paced or in a lab: measure the same plans in interleaved rounds. Rank 0 prints {"plans": […], "splits": […]}."""

from __future__ import annotations

import dataclasses
import json
import sys
from itertools import product
from pathlib import Path
from statistics import median

from autotune.jobs.context import JobContext, set_up
from autotune.jobs.job import Job, check_job
from autotune.runtime.control.start import start_control
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import follow
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan

KIB = 1024
BATCH = 16
SPLITS = [s for s in product((5, 6, 7), (4, 5, 6), (2, 3, 4), (1, 2, 3)) if sum(s) == BATCH]
"""Every split within a sample of 6, 5, 3 and 2."""
OTHERS = [(4, 4, 4, 4), (5, 5, 4, 2), (10, 3, 2, 1)]


def plan(samples: tuple[int, ...], bucket_bytes: int = 256 * KIB, codec: str = "none") -> Plan:
    return Plan(
        batch=BatchPlan(samples=samples),
        comm=CommPlan(bucket_bytes=bucket_bytes),
        compression=CompressionPlan(codec=codec),
    )


def plans() -> list[Plan]:
    """The splits, then other splits, buckets and codecs."""
    knobs = product(((6, 5, 3, 2), *OTHERS), (64 * KIB, 4096 * KIB), ("none", "fp16"))
    return [*map(plan, SPLITS), *(plan(*chosen) for chosen in knobs)]


def measure(context: JobContext) -> list[float]:
    budget = Budget(warmup=1, steps=2, timeout_s=600)
    return [median(m.steps_s) for m in context.workers.compare(plans(), 6, budget)]


control = start_control()
job = Job(workload="vgg", options={"global_batch": str(BATCH)}, clusters=(sys.argv[1],), results=Path(sys.argv[2]))
(cluster,) = check_job(job, control.size)
context = set_up(dataclasses.replace(job, transports=("gloo",)), cluster, control)
if control.is_leader:
    steps_s = measure(context)
    context.workers.dismiss()
    splits = [[*split, step_s] for split, step_s in zip(SPLITS, steps_s, strict=False)]
    sys.stdout.write(json.dumps({"label": context.cluster.label, "plans_s": steps_s, "splits_s": splits}) + "\n")
    sys.stdout.flush()
else:
    follow(control, context.runner)
control.share(None)
