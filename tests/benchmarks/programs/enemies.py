"""Run by mpirun: enemies of retuning, each beside the best static plan in turn in one job.

enemies.py WORKLOAD CLUSTER OUT.json ENEMY STEPS

The best static plan is the one measured to be, of those that the simulator says may be.

"liar": rank 1 reports half the time that it computes. The others are traces: see tests/benchmarks/traces.
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
from tests.benchmarks.enemies import FIRST_STEPS, LIAR, TRACES, Enemy
from tests.benchmarks.steered import on_context, trained
from tests.benchmarks.stretches import Stretches

LIAR_RANK, TOLD = 1, 0.5


def as_told(decide: Decide) -> Decide:
    """What rank 0 hears if one rank lies."""

    def hear(row: StepRow) -> Decision | None:
        times = [seconds * (TOLD if rank == LIAR_RANK else 1.0) for rank, seconds in enumerate(row.compute_s)]
        return decide(replace(row, compute_s=tuple(times)))

    return hear


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("cluster")
    parser.add_argument("out", type=Path)
    parser.add_argument("enemy")
    parser.add_argument("steps", type=int)
    options = parser.parse_args()
    trace = "steady" if options.enemy == LIAR else str(TRACES / f"{options.enemy}.toml")
    job = Job(workload=options.workload, clusters=(options.cluster,), results=options.out.parent, replay=trace)

    def lead(context: JobContext) -> None:
        assert context.changing is not None
        mixes = context.changing.course([1.0] * options.steps)
        stretches = Stretches(context.info, context.graph, context.limits, mixes)
        start = stretches.plans[context.cluster] if context.cluster in stretches.plans else stretches.plans[mixes[0]]
        controller = make_controller(job, context, start, lambda _: None)
        decide = as_told(controller.decide) if options.enemy == LIAR else controller.decide
        tried = [(trained(context, plan, options.steps), plan) for plan in stretches.static_plans()]
        static, best = min(tried, key=lambda one: sum(one[0].measured.steps_s[FIRST_STEPS:]))
        retuned = trained(context, start, options.steps, decide)
        again = trained(context, best, options.steps)
        found = Enemy(
            command="nox -s enemies",
            label=context.cluster.label,
            enemy=options.enemy,
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
