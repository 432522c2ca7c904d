"""Run by mpirun: enemies of retuning, each beside the best static plan in turn in one job.

enemies.py WORKLOAD CLUSTER OUT.json ENEMY STEPS

The best static plan is the one measured to be, of those that the simulator says may be.

"liar": rank 1 reports half the time that it computes. The others are traces: see tests/benchmarks/traces.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from autotune.bench import Bench
from autotune.job import Job
from autotune.retune import make_controller
from autotune.runtime.pilot import Decide
from profilers.step_stats import StepRow
from results.decision import Decision
from results.environment import describe_environment
from results.store import write_json
from tests.benchmarks.enemies import FIRST_STEPS, LIAR, TRACES, Enemy
from tests.benchmarks.steered import on_bench, trained
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

    def lead(bench: Bench) -> None:
        assert bench.changing is not None
        mixes = bench.changing.course([1.0] * options.steps)
        stretches = Stretches(bench.info, bench.graph, bench.limits, mixes)
        start = stretches.plans[bench.cluster] if bench.cluster in stretches.plans else stretches.plans[mixes[0]]
        controller = make_controller(job, bench, start, lambda _: None)
        decide = as_told(controller.decide) if options.enemy == LIAR else controller.decide
        tried = [(trained(bench, plan, options.steps), plan) for plan in stretches.static_plans()]
        static, best = min(tried, key=lambda one: sum(one[0].measured.steps_s[FIRST_STEPS:]))
        retuned = trained(bench, start, options.steps, decide)
        again = trained(bench, best, options.steps)
        found = Enemy(
            command="nox -s enemies",
            label=bench.cluster.label,
            enemy=options.enemy,
            static_s=static.measured.steps_s,
            static_again_s=again.measured.steps_s,
            retuned_s=retuned.measured.steps_s,
            decisions=tuple(controller.decisions),
            environment=describe_environment(),
        )
        write_json(options.out, found)
        print(found.summary(), flush=True)

    on_bench(job, lead)


main()
