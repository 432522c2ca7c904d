"""Run by mpirun, paced or in a lab: training through a scenario by the best static plan, by an oracle, and retuned.

drift.py WORKLOAD CLUSTER OUT.json SCENARIO STEPS [--repeats N] [--parts]

The best static plan is found on the simulator over the whole scenario: all knobs, and splits by descent from the best ones
of the longest stretches. The oracle has the scenario as input. From the step at which the cluster changes, it uses the plan
that a search on the simulator finds for that stretch, if the predicted gain is at least one percent. Retuned training
starts from the plan for the stated cluster. All runs are interleaved in one job and go through the same changes.
With `--parts`: the plan for the stated cluster without retuning, and retuned in one part only (samples, partition, codec,
collective) or in all; lossy codecs are allowed. The results are written after each run.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from autotune.jobs.context import JobContext, set_up
from autotune.jobs.job import Job, check_job
from autotune.jobs.online_job import make_controller
from autotune.online.controller import Controller
from autotune.profilers.step_stats import StepRow
from autotune.results.store.decision import COMPUTE, Decision
from autotune.results.store.environment import describe_environment
from autotune.results.store.store import write_json
from autotune.runtime.control.start import start_control
from autotune.runtime.control.step_directives import Decide
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import follow
from autotune.workloads.plan import Plan
from tests.benchmarks.drift import (
    ORACLE,
    PARTS,
    RETUNED,
    STATIC,
    UNCHANGED,
    Compared,
    Drift,
    DriftRun,
    best_first,
    other_name,
)
from tests.benchmarks.stretches import Stretches


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """A plan, and perhaps a decision function."""

    plan: Plan
    decide: Decide | None = None
    controller: Controller | None = None


def by_script(plans: list[Plan]) -> Decide:
    """Decisions that follow a list with the plan of every step."""

    def decide(row: StepRow) -> Decision | None:
        after = row.step + 1
        if after >= len(plans) or plans[after] == plans[row.step]:
            return None
        return Decision(step=after, plan=plans[after], kind=COMPUTE, reason="the scenario says so")

    return decide


def contenders(job: Job, context: JobContext, stretches: Stretches) -> dict[str, Contender]:
    """Best static plans, oracles, and retuned training; of the first two, all that may be the best."""
    assert context.changing is not None
    start = stretches.plans[context.changing.cluster]
    controller = make_controller(job, context, start, lambda _: None)
    found = {RETUNED: Contender(plan=start, decide=controller.decide, controller=controller)}
    for number, plan in enumerate(stretches.static_plans()):
        found[other_name(STATIC, number)] = Contender(plan=plan)
    for number, script in enumerate(stretches.oracles()):
        found[other_name(ORACLE, number)] = Contender(plan=script[0], decide=by_script(script))
    return found


def parts(job: Job, context: JobContext, stretches: Stretches) -> dict[str, Contender]:
    """The same plan, with one part that may change."""
    assert context.changing is not None
    start = stretches.plans[context.changing.cluster]
    found = {UNCHANGED: Contender(plan=start)}
    for name, allowed in PARTS.items():
        controller = make_controller(job, context, start, lambda _: None, allowed)
        found[name] = Contender(plan=start, decide=controller.decide, controller=controller)
    return found


def run(context: JobContext, contender: Contender, num_steps: int) -> DriftRun:
    budget = Budget(warmup=0, steps=num_steps, timeout_s=900)
    done = context.workers.train(contender.plan, budget, lambda _: None, watched=False, decide=contender.decide)
    return DriftRun(
        steps_s=done.measured.steps_s,
        plan=contender.plan,
        decisions=tuple(contender.controller.decisions) if contender.controller is not None else (),
        cpu_s=sum(rank.cpu_s for rank in done.measured.ranks),
    )


def lead(job: Job, context: JobContext, options: argparse.Namespace) -> Compared:
    assert context.changing is not None
    clusters = context.changing.course([1.0] * options.steps)
    stretches = Stretches(context.info, context.graph, context.limits, clusters)
    changes = tuple(step for step in range(1, len(clusters)) if clusters[step] != clusters[step - 1])
    runs: dict[str, list[DriftRun]] = {}
    for repeat in range(options.repeats):
        chosen = (parts if options.parts else contenders)(job, context, stretches)
        for name in list(chosen)[:: -1 if repeat % 2 else 1]:
            runs.setdefault(name, []).append(run(context, chosen[name], options.steps))
            kept = {key: tuple(made) for key, made in runs.items()}
            compared = Compared(scenario=options.scenario, changes=changes, runs=best_first(kept))
            keep(options, context, compared)
    return compared


def keep(options: argparse.Namespace, context: JobContext, compared: Compared) -> None:
    write_json(
        options.out,
        Drift(
            command="nox -s drift",
            workload=options.workload,
            cluster=options.cluster,
            label=context.cluster.label,
            compared=compared,
            environment=describe_environment(),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("cluster")
    parser.add_argument("out", type=Path)
    parser.add_argument("scenario")
    parser.add_argument("steps", type=int)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    control = start_control()
    job = Job(
        workload=options.workload,
        clusters=(options.cluster,),
        results=options.out.parent,
        replay=options.scenario,
        allow_lossy=options.parts,
    )
    (cluster,) = check_job(job, control.size)
    context = set_up(job, cluster, control)
    if not control.is_leader:
        follow(control, context.runner)
        return
    compared = lead(job, context, options)
    context.workers.dismiss()
    print(compared.parts_summary() if options.parts else compared.summary(), flush=True)


main()
