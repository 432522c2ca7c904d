"""Run by mpirun: splits that follow unlike devices ("balance", one job per batch) or disturbed ones ("disturbance").

split_runs.py balance|disturbance FOLDER WORKLOAD BATCH [--steps N]
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from autotune.jobs.context import JobContext
from autotune.jobs.job import Job
from autotune.jobs.online_job import make_controller
from autotune.online.candidates import Retunable
from autotune.results.store.environment import describe_environment
from autotune.results.store.store import write_json
from autotune.simulate.limit import stated_sample_s
from autotune.simulate.roofline import compute_s
from autotune.workloads.plan import MIB, BatchPlan, CommPlan, Plan
from autotune.workloads.split import RankCost, balanced, even
from tests.benchmarks.retuned_runs import Recorder, on_context, trained
from tests.benchmarks.split_runs import (
    BALANCE_STEPS,
    CLUSTER,
    EPOCH,
    EVEN,
    NUM_EPOCHS,
    RETUNED,
    STATIC,
    Balance,
    Curve,
    Disturbed,
    balance_file,
    disturbances,
)

ONLY_SAMPLES = Retunable(partition=False, codec=False, collective=False)
COMM = CommPlan(bucket_bytes=MIB // 2)
"""Half a MiB: of a whole one gpt fills but one bucket, which can only be sent when all is computed."""


def plan_of(samples: tuple[int, ...]) -> Plan:
    return Plan(batch=BatchPlan(samples=samples), comm=COMM)


def best_split(context: JobContext) -> tuple[int, ...]:
    total = context.info.global_batch
    times = [[compute_s(context.graph, device, count) for count in (8, 40)] for device in context.cluster.devices]
    slopes = [(many - few) / 32 for few, many in times]
    lines = [
        RankCost(fixed_s=few - 8 * slope, per_sample_s=slope) for (few, _), slope in zip(times, slopes, strict=True)
    ]
    return balanced(lines, total, context.limits)


def measure_balance(job: Job, context: JobContext, folder: Path, num_steps: int) -> None:
    total = context.info.global_batch
    start = plan_of(even(total, context.limits))
    recorder = Recorder(make_controller(job, context, start, lambda _: None, ONLY_SAMPLES).decide, [])
    done = trained(context, start, num_steps, recorder)
    best = best_split(context)
    times = [compute_s(context.graph, device, n) for device, n in zip(context.cluster.devices, best, strict=True)]
    write_json(
        balance_file(folder, job.workload, total),
        Balance(
            command="nox -s split",
            label=context.cluster.label,
            workload=job.workload,
            global_batch=total,
            splits=tuple(row.samples for row in recorder.rows),
            compute_s=tuple(row.compute_s for row in recorder.rows),
            steps_s=done.measured.steps_s,
            ideal_samples_per_s=sum(1 / seconds for seconds in stated_sample_s(context.graph, context.cluster)),
            least_imbalance=max(times) / (sum(times) / len(times)) - 1,
            environment=describe_environment(),
        ),
    )


def measure_disturbance(job: Job, context: JobContext, folder: Path, num_steps: int) -> None:
    static = plan_of(best_split(context))
    controller = make_controller(job, context, static, lambda _: None, ONLY_SAMPLES)
    curves: dict[str, Curve] = {}
    for name, plan, decide in (
        (EVEN, plan_of(even(context.info.global_batch, context.limits)), None),
        (STATIC, static, None),
        (RETUNED, static, controller.decide),
    ):
        done = trained(context, plan, num_steps, decide)
        made = tuple(controller.decisions) if name == RETUNED else ()
        curves[name] = Curve(steps_s=done.measured.steps_s, losses=done.losses, decisions=made)
        found = Disturbed(
            command="nox -s split",
            label=context.cluster.label,
            disturbances=tuple(disturbances()),
            curves=curves,
            environment=describe_environment(),
        )
        write_json(folder / "disturbance.json", found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["balance", "disturbance"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("workload")
    parser.add_argument("batch", type=int)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    batch = {"global_batch": str(options.batch)}
    job = Job(workload=options.workload, clusters=(CLUSTER,), results=options.folder, options=batch)
    if options.what == "balance":
        on_context(job, lambda context: measure_balance(job, context, options.folder, options.steps or BALANCE_STEPS))
    else:
        job = replace(job, replay=str(options.folder / "disturbance.toml"))
        num_steps = options.steps or EPOCH * NUM_EPOCHS
        on_context(job, lambda context: measure_disturbance(job, context, options.folder, num_steps))


main()
