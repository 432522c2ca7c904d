"""Run by mpirun on a machine with nothing paced: the overhead of the schedule if it cannot help; --json FILE.

Neutralised (one fusion buffer, no limit, fifo, a barrier) against the plain path with one bucket: nothing is scheduled, and
no control message is sent. The same by priority shows the cost of control messages. Cut like DDP's buckets, fifo, against
torch DDP. All plans are interleaved in one job; the plain path runs twice, to show the noise. Within one job two equal
plans differ by up to 4 %, depending on the addresses of their memory: a figure takes several launches.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from statistics import median
from typing import Any

from autotune.jobs.context import JobContext, set_up
from autotune.jobs.job import Job, check_job
from autotune.results.judge.stats import speedup
from autotune.results.store.environment import describe_environment
from autotune.runtime.control.start import start_control
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import follow
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import MIB, BatchPlan, CommPlan, Plan
from autotune.workloads.plan.buckets import ddp_bucket_indices, unit_indices
from autotune.workloads.split import even

ALL = 2**40
BUCKET_BYTES = 2 * MIB
"""With which DDP and the schedule make the same buckets of these models, and the schedule cuts none: see `check_buckets`."""
PLANS = {
    "plain, one bucket": CommPlan(bucket_bytes=ALL),
    "neutralised": CommPlan(reducer="scheduled", partition_bytes=ALL, credit_bytes=ALL, priority="fifo"),
    "neutralised, with control messages": CommPlan(reducer="scheduled", partition_bytes=ALL, credit_bytes=ALL),
    "plain, one bucket, again": CommPlan(bucket_bytes=ALL),
    "DDP": CommPlan(reducer="ddp", bucket_bytes=BUCKET_BYTES),
    "scheduled, cut like DDP": CommPlan(
        reducer="scheduled", partition_bytes=BUCKET_BYTES, credit_bytes=ALL, priority="fifo"
    ),
    "scheduled, cross-step overlap": CommPlan(
        reducer="scheduled", partition_bytes=BUCKET_BYTES, credit_bytes=ALL, crosses_steps=True
    ),
}
PAIRS = (
    ("neutralised", "plain, one bucket"),
    ("neutralised, with control messages", "plain, one bucket"),
    ("plain, one bucket, again", "plain, one bucket"),
    ("scheduled, cut like DDP", "DDP"),
    ("scheduled, cross-step overlap", "DDP"),
)


def check_buckets(graph: OpGraph) -> None:
    """Require the same messages on both sides of the comparison."""
    sizes = [parameter.num_bytes for parameter in reversed(graph.parameters)]
    units = unit_indices(BUCKET_BYTES, sizes)
    totals = [sum(sizes[index] for index in unit) for unit in units]
    if units != ddp_bucket_indices(BUCKET_BYTES, sizes) or max(totals) >= 1.5 * BUCKET_BYTES:
        raise ValueError(f"units of {totals} bytes are not what DDP makes of them, or are cut: choose another size")


def compared(launches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One ratio per launch, of the medians of its rounds; the interval is over launches."""

    def column(name: str, key: str) -> list[float]:
        return [launch[name][key] for launch in launches]

    found = []
    for ours, theirs in PAIRS:
        ratio = speedup(column(theirs, "step_s"), column(ours, "step_s"), widened=True)
        found.append(
            {
                "contender": ours,
                "against": theirs,
                "throughput": ratio.value,
                "low": ratio.low,
                "high": ratio.high,
                "step_s": median(column(ours, "step_s")),
                "cpu_s_per_step": median(column(ours, "cpu_s_per_step")),
                "cpu_s_per_step_against": median(column(theirs, "cpu_s_per_step")),
            }
        )
    return found


def measured_once(context: JobContext, launch: int, rounds: int, steps: int) -> dict[str, Any]:
    """Every plan's median round. A launch builds the trainers in an order of its own: where a trainer's memory lies differs."""
    check_buckets(context.graph)
    samples = even(context.info.global_batch, context.limits)
    names = random.Random(launch).sample(list(PLANS), len(PLANS))
    plans = [Plan(batch=BatchPlan(samples=samples), comm=PLANS[name]) for name in names]
    measured = context.workers.compare(plans, rounds, Budget(warmup=3, steps=steps, timeout_s=600, traced=False))
    return {
        name: {"step_s": median(of.steps_s), "cpu_s_per_step": sum(rank.cpu_s for rank in of.ranks)}
        for name, of in zip(names, measured, strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--workloads", nargs="+", default=["vgg", "gpt"])
    parser.add_argument("--launch", type=int, default=0, help="0 begins the file anew, others add to it")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    control = start_control()
    found = {}
    for workload in options.workloads:
        job = Job(workload=workload, clusters=("this-machine",), results=options.json.parent)
        (cluster,) = check_job(job, control.size)
        context = set_up(job, cluster, control)
        if not control.is_leader:
            follow(control, context.runner)
            continue
        found[workload] = measured_once(context, options.launch, options.rounds, options.steps)
        context.workers.dismiss()
    if not control.is_leader:
        return
    launches = {workload: [] for workload in found}
    if options.launch:
        launches = json.loads(options.json.read_text())["launches"]
    for workload, launch in found.items():
        launches[workload].append(launch)
    document = {
        "command": "nox -s engine_overhead",
        "label": "measured on this machine",
        "environment": describe_environment(),
        "ranks": control.size,
        "bucket_bytes": BUCKET_BYTES,
        "rounds": options.rounds,
        "workloads": {workload: compared(made) for workload, made in launches.items()},
        "launches": launches,
    }
    options.json.write_text(json.dumps(document, indent=1) + "\n")


main()
