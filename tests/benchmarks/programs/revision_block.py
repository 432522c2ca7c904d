"""Run by mpirun with one revision's packages on PYTHONPATH: wait for a request, measure a block of steps, write the result.

    revision_block.py FOLDER PACKAGES WORKLOAD CLUSTER [PLAN]

Both revisions run this very file, so it uses little of the packages and nothing that often changes. FOLDER is how the
driver talks to rank 0: `N.turn` asks for block N with so many steps, `N.json` answers, `end` ends the job. A job that
waits sleeps, so that it does not disturb the other revision.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import autotune
from autotune.jobs.context import JobContext, set_up
from autotune.jobs.job import Job, check_job
from autotune.runtime.control.start import start_control
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import follow
from autotune.workloads.plan import MIB, BatchPlan, CommPlan, Plan
from autotune.workloads.serial import from_data
from autotune.workloads.split import bounds, proportional

POLL_S = 0.01
LIMIT_S = 120.0


def chosen_plan(context: JobContext, file: str | None) -> Plan:
    """The plan of a file that `autotune best --export` wrote; else our own reducer, samples by stated speed."""
    if file is not None:
        return from_data(Plan, json.loads(Path(file).read_text())["plan"], file)
    speeds = [device.flops_per_s or 1.0 for device in context.cluster.devices]
    total = context.info.global_batch
    samples = proportional(speeds, total, bounds(len(speeds), total))
    return Plan(batch=BatchPlan(samples=samples), comm=CommPlan(bucket_bytes=MIB))


def lead(context: JobContext, plan: Plan, folder: Path) -> None:
    """Answer requests until the end."""
    write(folder / "ready", {})
    number = 0
    while (steps := next_turn(folder, number)) is not None:
        measured = context.workers.measure(plan, Budget(warmup=1, steps=steps, timeout_s=LIMIT_S))
        cpu_s = sum(rank.cpu_s for rank in measured.ranks)
        write(folder / f"{number}.json", {"steps_s": measured.steps_s, "cpu_s": cpu_s, "reason": measured.reason})
        number += 1


def next_turn(folder: Path, number: int) -> int | None:
    """How many steps block `number` shall have; None: it is over."""
    turn, end = folder / f"{number}.turn", folder / "end"
    while not turn.exists():
        if end.exists():
            return None
        time.sleep(POLL_S)
    return int(json.loads(turn.read_text()))


def write(path: Path, value: Any) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


def main(folder: str, packages: str, workload: str, cluster: str, plan: str | None = None) -> None:
    if not Path(autotune.__file__).resolve().is_relative_to(Path(packages).resolve()):
        sys.exit(f"autotune was imported from {autotune.__file__}, not from {packages}")
    control = start_control()
    job = Job(workload=workload, clusters=(cluster,), results=Path(folder) / "results", transports=("gloo",))
    (cluster,) = check_job(job, control.size)
    context = set_up(job, cluster, control)
    if control.is_leader:
        lead(context, chosen_plan(context, plan), Path(folder))
        context.workers.dismiss()
    else:
        follow(control, context.runner)
    control.share(None)


if __name__ == "__main__":
    main(*sys.argv[1:])
