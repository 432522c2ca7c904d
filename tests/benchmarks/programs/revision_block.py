"""Run by mpirun with one revision's packages on PYTHONPATH: wait for a turn, measure a block of steps, write them down.

    revision_block.py FOLDER PACKAGES WORKLOAD CLUSTER [PLAN]

Both revisions run this very file, so it uses little of the packages and nothing that often changes. FOLDER is how the
driver talks to rank 0: `N.turn` asks for block N with so many steps, `N.json` answers, `end` ends the job. Whoever waits
sleeps, so that the other revision's turn is not disturbed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import autotune
from autotune.bench import Bench, set_up
from autotune.job import Job, check_job
from autotune.runtime.control import start_control
from autotune.runtime.crew import follow
from autotune.runtime.trial import Effort
from workloads.plan import MIB, BatchPlan, CommPlan, Plan
from workloads.serial import from_data
from workloads.split import bounds, proportional

POLL_S = 0.01
LIMIT_S = 120.0


def chosen_plan(bench: Bench, file: str | None) -> Plan:
    """The plan of a file that `autotune best --export` wrote; else our own reducer, samples by stated speed."""
    if file is not None:
        return from_data(Plan, json.loads(Path(file).read_text())["plan"], file)
    speeds = [device.flops_per_s or 1.0 for device in bench.cluster.devices]
    total = bench.info.global_batch
    samples = proportional(speeds, total, bounds(len(speeds), total))
    return Plan(batch=BatchPlan(samples=samples), comm=CommPlan(bucket_bytes=MIB))


def lead(bench: Bench, plan: Plan, folder: Path) -> None:
    """Answer turn after turn until told to end."""
    write(folder / "ready", {})
    number = 0
    while (steps := next_turn(folder, number)) is not None:
        measured = bench.crew.measure(plan, Effort(warmup=1, steps=steps, timeout_s=LIMIT_S))
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
    """In one step: whoever waits for the file sees all of it."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


def main(folder: str, packages: str, workload: str, cluster: str, plan: str | None = None) -> None:
    if not Path(autotune.__file__).resolve().is_relative_to(Path(packages).resolve()):
        sys.exit(f"autotune was imported from {autotune.__file__}, not from {packages}")
    control = start_control()
    job = Job(workload=workload, clusters=(cluster,), results=Path(folder) / "results", transports=("gloo",))
    (mix,) = check_job(job, control.size)
    bench = set_up(job, mix, control)
    if control.is_leader:
        lead(bench, chosen_plan(bench, plan), Path(folder))
        bench.crew.dismiss()
    else:
        follow(control, bench.runner)
    control.share(None)


if __name__ == "__main__":
    main(*sys.argv[1:])
