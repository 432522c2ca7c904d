"""Run by mpirun in a lab: windows of real steps under several plans, and what a dozen candidates take after each.

meta_lab.py WORKLOAD CLUSTER OUT.json [--windows N] [--candidates N]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from autotune.bench import Bench
from autotune.job import Job
from autotune.online.candidates import candidates
from autotune.online.features import Grid
from autotune.online.known import Known, known_of
from autotune.online.statistics import window
from autotune.predict import Predictor
from autotune.runtime.trial import Effort
from autotune.simulate.cost_model import cost_model
from autotune.simulate.simulator import Simulator
from results.environment import describe_environment
from results.store import write_json
from tests.benchmarks.meta_lab import LabWindow, LabWindows
from tests.benchmarks.steered import Noted, on_bench, trained
from workloads.plan import Plan

SKIPPED, WINDOW = 3, 6
"""Steps that say nothing yet, and those of a window."""
WARMUP, STEPS = 1, 4


def measured_window(bench: Bench, predictor: Predictor, known: Known, plans: Sequence[Plan]) -> LabWindow:
    """The first of the plans runs; then all are measured, in turn."""
    running = plans[0]
    noted = Noted(lambda _: None, [])
    trained(bench, running, SKIPPED + WINDOW + 1, noted)
    closed = [stats for row in noted.rows[-WINDOW:] for stats in row.closed or ()]
    seen = window(closed, running, known)
    numbers, rows = Grid(plans, known).numbers(seen)
    effort = Effort(warmup=WARMUP, steps=STEPS, timeout_s=120, traced=False)
    steps_s = [sorted(bench.crew.measure(plan, effort).steps_s)[STEPS // 2] for plan in plans]
    return LabWindow(
        running=0,
        default=1,
        plans=tuple(plans),
        window=tuple(float(value) for value in numbers),
        rows=tuple(tuple(float(value) for value in row) for row in rows),
        measured_s=tuple(steps_s),
        simulated_s=tuple(predictor.simulator.step_s(plan) for plan in plans),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("cluster")
    parser.add_argument("out", type=Path)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--candidates", type=int, default=12)
    options = parser.parse_args()
    job = Job(workload=options.workload, clusters=(options.cluster,), results=options.out.parent)

    def lead(bench: Bench) -> None:
        costs = cost_model(bench.graph, bench.cluster)
        simulator = Simulator(bench.info, bench.graph, costs)
        predictor = Predictor(simulator=simulator, bounds=bench.limits, cluster=bench.cluster)
        known = known_of(bench.graph, costs, "gloo")
        space, samples = predictor.space(("gloo",), allow_lossy=False), predictor.balanced_split()
        default, *others = candidates(space, samples, transport="gloo").plans
        draw, windows = random.Random(f"{options.workload}@{options.cluster}"), []
        for _ in range(options.windows):
            running, *rest = draw.sample(others, options.candidates - 1)
            windows.append(measured_window(bench, predictor, known, [running, default, *rest]))
            kept = LabWindows(
                command="nox -s meta_lab",
                workload=options.workload,
                cluster=options.cluster,
                label=bench.cluster.label,
                windows=tuple(windows),
                environment=describe_environment(),
            )
            write_json(options.out, kept)

    on_bench(job, lead)


main()
