"""Run by mpirun on a machine with nothing paced: what the schedule costs where it cannot help; --json FILE.

Neutralised (one unit, no limit, first come first served, a barrier) against the plain path with one bucket: nothing is to be
decided, so nobody is asked. The same by priority, for which every unit needs a grant, shows what asking costs. Cut like DDP's
buckets, first come first served, against torch DDP. In turn, in one job; the plain path runs twice, to show the noise.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from autotune.bench import set_up
from autotune.job import Job, check_job
from autotune.runtime.control import start_control
from autotune.runtime.crew import Measurement, follow
from autotune.runtime.trial import Effort
from results.environment import describe_environment
from results.stats import speedup
from workloads.buckets import ddp_bucket_indices, unit_indices
from workloads.graph import OpGraph
from workloads.plan import MIB, BatchPlan, CommPlan, Plan
from workloads.split import even

ALL = 2**40
BUCKET_BYTES = 2 * MIB
"""With which DDP and the schedule make the same buckets of these models, and the schedule cuts none: see `check_buckets`."""
PLANS = {
    "plain, one bucket": CommPlan(bucket_bytes=ALL),
    "neutralised": CommPlan(reducer="scheduled", partition_bytes=ALL, credit_bytes=ALL, priority="fifo"),
    "neutralised, asking for grants": CommPlan(reducer="scheduled", partition_bytes=ALL, credit_bytes=ALL),
    "plain, one bucket, again": CommPlan(bucket_bytes=ALL),
    "DDP": CommPlan(reducer="ddp", bucket_bytes=BUCKET_BYTES),
    "scheduled, cut like DDP": CommPlan(
        reducer="scheduled", partition_bytes=BUCKET_BYTES, credit_bytes=ALL, priority="fifo"
    ),
    "scheduled, crossing": CommPlan(
        reducer="scheduled", partition_bytes=BUCKET_BYTES, credit_bytes=ALL, crosses_steps=True
    ),
}
PAIRS = (
    ("neutralised", "plain, one bucket"),
    ("neutralised, asking for grants", "plain, one bucket"),
    ("plain, one bucket, again", "plain, one bucket"),
    ("scheduled, cut like DDP", "DDP"),
    ("scheduled, crossing", "DDP"),
)


def check_buckets(graph: OpGraph) -> None:
    """The same messages on both sides, or the comparison says nothing."""
    sizes = [parameter.num_bytes for parameter in reversed(graph.parameters)]
    units = unit_indices(BUCKET_BYTES, sizes)
    totals = [sum(sizes[index] for index in unit) for unit in units]
    if units != ddp_bucket_indices(BUCKET_BYTES, sizes) or max(totals) >= 1.5 * BUCKET_BYTES:
        raise ValueError(f"units of {totals} bytes are not what DDP makes of them, or are cut: choose another size")


def compared(measured: dict[str, Measurement]) -> list[dict[str, Any]]:
    found = []
    for ours, theirs in PAIRS:
        ratio = speedup(measured[theirs].steps_s, measured[ours].steps_s)
        cpu = [sum(rank.cpu_s for rank in measured[name].ranks) for name in (ours, theirs)]
        found.append(
            {
                "contender": ours,
                "against": theirs,
                "throughput": ratio.value,
                "low": ratio.low,
                "high": ratio.high,
                "step_s": median(measured[ours].steps_s),
                "cpu_s_per_step": cpu[0],
                "cpu_s_per_step_against": cpu[1],
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--workloads", nargs="+", default=["vgg", "gpt"])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    control = start_control()
    found = {}
    for workload in options.workloads:
        job = Job(workload=workload, clusters=("this-machine",), results=options.json.parent)
        (cluster,) = check_job(job, control.size)
        bench = set_up(job, cluster, control)
        if not control.is_leader:
            follow(control, bench.runner)
            continue
        check_buckets(bench.graph)
        samples = even(bench.info.global_batch, bench.limits)
        plans = [Plan(batch=BatchPlan(samples=samples), comm=replace(comm)) for comm in PLANS.values()]
        effort = Effort(warmup=3, steps=options.steps, timeout_s=600, traced=False)
        measured = bench.crew.contest(plans, options.rounds, effort)
        found[workload] = compared(dict(zip(PLANS, measured, strict=True)))
        bench.crew.dismiss()
    if control.is_leader:
        document = {
            "command": "nox -s engine_overhead",
            "label": "measured on this machine",
            "environment": describe_environment(),
            "ranks": control.size,
            "bucket_bytes": BUCKET_BYTES,
            "rounds": options.rounds,
            "workloads": found,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


main()
