"""Run by mpirun: an adversarial scenario for retuning, beside the best static plan in one job.

adversarial.py WORKLOAD CLUSTER OUT.json SCENARIO STEPS

The best static plan is the fastest, as measured, of those that the simulator predicts to be the best.
In "misreporting-rank" rank 1 reports half its compute time. The other scenarios are files in tests/benchmarks/scenarios.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from autotune.jobs.context import JobContext
from autotune.jobs.job import Job
from autotune.jobs.online_job import make_controller
from autotune.profilers.step_stats import StepRow
from autotune.results.store.decision import Decision
from autotune.results.store.environment import describe_environment
from autotune.results.store.store import write_json
from autotune.runtime.control.step_directives import Decide
from tests.benchmarks.adversarial import FIRST_STEPS, MISREPORTING, SCENARIOS, Adversarial
from tests.benchmarks.retuned_runs import on_context, trained
from tests.benchmarks.stretches import Stretches

RANK, REPORTED_SHARE = 1, 0.5


def misreporting(decide: Decide) -> Decide:
    """The decisions of rank 0 if one rank reports a share of its time."""

    def decide_misled(row: StepRow) -> Decision | None:
        times = [seconds * (REPORTED_SHARE if rank == RANK else 1.0) for rank, seconds in enumerate(row.compute_s)]
        return decide(replace(row, compute_s=tuple(times)))

    return decide_misled


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("cluster")
    parser.add_argument("out", type=Path)
    parser.add_argument("scenario")
    parser.add_argument("steps", type=int)
    options = parser.parse_args()
    is_misreporting = options.scenario == MISREPORTING
    scenario = "steady" if is_misreporting else str(SCENARIOS / f"{options.scenario}.toml")
    job = Job(workload=options.workload, clusters=(options.cluster,), results=options.out.parent, replay=scenario)

    def lead(context: JobContext) -> None:
        assert context.changing is not None
        clusters = context.changing.course([1.0] * options.steps)
        stretches = Stretches(context.info, context.graph, context.limits, clusters)
        first = context.cluster if context.cluster in stretches.plans else clusters[0]
        start = stretches.plans[first]
        controller = make_controller(job, context, start, lambda _: None)
        decide = misreporting(controller.decide) if is_misreporting else controller.decide
        tried = [(trained(context, plan, options.steps), plan) for plan in stretches.static_plans()]
        static, best = min(tried, key=lambda one: sum(one[0].measured.steps_s[FIRST_STEPS:]))
        retuned = trained(context, start, options.steps, decide)
        again = trained(context, best, options.steps)
        found = Adversarial(
            command="nox -s adversarial",
            label=context.cluster.label,
            scenario=options.scenario,
            static_s=static.measured.steps_s,
            static_again_s=again.measured.steps_s,
            retuned_s=retuned.measured.steps_s,
            decisions=tuple(controller.decisions),
            environment=describe_environment(),
        )
        write_json(options.out, found)
        print(found.summary(), flush=True)

    on_context(job, lead)


main()
