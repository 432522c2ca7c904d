"""Run by mpirun in a lab: windows of real steps under several plans, and the step times of a dozen candidates after each.

meta_lab.py WORKLOAD CLUSTER OUT.json [--windows N] [--candidates N]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from autotune.jobs.context import JobContext
from autotune.jobs.job import Job
from autotune.jobs.predict import Predictor
from autotune.online.candidates import candidates
from autotune.online.features import FeatureTable
from autotune.online.priors import Priors, priors_of
from autotune.online.window import window
from autotune.results.store.environment import describe_environment
from autotune.results.store.store import write_json
from autotune.runtime.trial.runner import Budget
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.workloads.plan import Plan
from tests.benchmarks.meta_lab import LabWindow, LabWindows
from tests.benchmarks.retuned_runs import Recorder, on_context, trained

SKIPPED, WINDOW = 3, 6
"""Steps that are ignored, and steps of a window."""
WARMUP, STEPS = 1, 4


def measured_window(context: JobContext, predictor: Predictor, priors: Priors, plans: Sequence[Plan]) -> LabWindow:
    """The first of the plans runs; then all are measured, one after another."""
    running = plans[0]
    recorder = Recorder(lambda _: None, [])
    trained(context, running, SKIPPED + WINDOW + 1, recorder)
    closed = [stats for row in recorder.rows[-WINDOW:] for stats in row.closed or ()]
    seen = window(closed, running, priors)
    features, rows = FeatureTable(plans, priors).features(seen)
    budget = Budget(warmup=WARMUP, steps=STEPS, timeout_s=120, compared=False)
    steps_s = [sorted(context.workers.measure(plan, budget).steps_s)[STEPS // 2] for plan in plans]
    return LabWindow(
        running=0,
        default=1,
        plans=tuple(plans),
        window=tuple(float(value) for value in features),
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

    def lead(context: JobContext) -> None:
        costs = cost_model(context.graph, context.cluster)
        simulator = Simulator(context.info, context.graph, costs)
        predictor = Predictor(simulator=simulator, bounds=context.limits, cluster=context.cluster)
        priors = priors_of(context.graph, costs, "gloo")
        space, samples = predictor.space(("gloo",), allow_lossy=False), predictor.balanced_split()
        default, *others = candidates(space, samples, transport="gloo").plans
        draw, windows = random.Random(f"{options.workload}@{options.cluster}"), []
        for _ in range(options.windows):
            running, *rest = draw.sample(others, options.candidates - 1)
            windows.append(measured_window(context, predictor, priors, [running, default, *rest]))
            kept = LabWindows(
                command="nox -s meta_lab",
                workload=options.workload,
                cluster=options.cluster,
                label=context.cluster.label,
                windows=tuple(windows),
                environment=describe_environment(),
            )
            write_json(options.out, kept)

    on_context(job, lead)


main()
