"""Run by mpirun, paced or in a lab: training through traces by the best static plan, by one who knows the trace, and retuned.

drift.py WORKLOAD CLUSTER OUT.json TRACE STEPS [--repeats N]

The best static plan is searched on the simulator over the whole trace: every knob, and splits by descent from the best of the longest
stretches. The clairvoyant goes, from the very step at which the mix changes, by the plan that a search on the simulator finds for
that stretch, if it promises a percent; it knows the trace, and nobody else does. Retuned training starts from the plan for
the mix as the cluster file states it. All take turns in one job and go through the same changes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from autotune.bench import Bench, set_up
from autotune.job import Job, check_job
from autotune.predict import Predictor
from autotune.retune import make_controller
from autotune.runtime.control import start_control
from autotune.runtime.crew import follow
from autotune.runtime.pilot import Decide
from autotune.runtime.trial import Effort
from autotune.search.descent import descend
from autotune.simulate.cost_model import cost_model
from autotune.simulate.simulator import Simulator
from profilers.step_stats import StepRow
from results.decision import COMPUTE, Decision
from results.environment import describe_environment
from results.store import write_json
from tests.benchmarks.drift import CLAIRVOYANT, RETUNED, STATIC, Drift, DriftRun, Traced
from workloads.cluster import Cluster
from workloads.plan import Plan

LEAST = 0.01
"""What another plan must promise for the clairvoyant to go by it."""
MOST_PLANS = 400
"""That are judged from each start."""
STARTS = 3
"""Of the search for the best static plan: the mixes that last longest."""


class Stretches:
    """The mixes of a trace, and the plans that a simulator finds for them."""

    def __init__(self, bench: Bench, mixes: list[Cluster]) -> None:
        self.mixes = mixes
        different: dict[Cluster, int] = {}
        for mix in mixes:
            different[mix] = different.get(mix, 0) + 1
        self._counts = different
        self._predictors = {
            mix: Predictor(
                simulator=Simulator(bench.info, bench.graph, cost_model(bench.graph, mix)),
                bounds=bench.limits,
                cluster=mix,
            )
            for mix in different
        }
        self.plans = {mix: self._search(mix, [mix])[0] for mix in different}

    def best_static(self) -> Plan:
        longest = sorted(self._counts, key=lambda mix: -self._counts[mix])[:STARTS]
        found = [self._search(mix, list(self._counts)) for mix in longest]
        plan, seconds = min(found, key=lambda entry: entry[1])
        # All contenders send alike unless it pays: the simulator does not know what many small messages cost a processor.
        alike = replace(self.plans[self.mixes[0]], batch=plan.batch)
        return alike if self._total_s(alike) <= seconds * (1 + LEAST) else plan

    def _total_s(self, plan: Plan) -> float:
        return sum(count * self._predictors[mix].simulator.step_s(plan) for mix, count in self._counts.items())

    def clairvoyant(self) -> list[Plan]:
        """The plan of each step."""
        plans = [self.plans[self.mixes[0]]]
        for mix in self.mixes[1:]:
            simulator, best = self._predictors[mix].simulator, self.plans[mix]
            same = replace(plans[-1], batch=best.batch)
            plan = same if simulator.step_s(same) <= simulator.step_s(best) * (1 + LEAST) else best
            stays = simulator.step_s(plans[-1]) <= simulator.step_s(plan) * (1 + LEAST)
            plans.append(plans[-1] if stays else plan)
        return plans

    def _search(self, start: Cluster, judged: list[Cluster]) -> tuple[Plan, float]:
        predictor = self._predictors[start]
        space = predictor.space(("gloo",), allow_lossy=False)

        def judge(plan: Plan) -> float:
            return sum(self._counts[mix] * self._predictors[mix].simulator.step_s(plan) for mix in judged)

        seconds, plan = descend(space, predictor.balanced_split(), judge, most=MOST_PLANS)[0]
        return plan, seconds


def by_script(plans: list[Plan]) -> Decide:
    """Somebody who knows the plan of every step."""

    def decide(row: StepRow) -> Decision | None:
        after = row.step + 1
        if after >= len(plans) or plans[after] == plans[row.step]:
            return None
        return Decision(step=after, plan=plans[after], kind=COMPUTE, reason="the trace says so")

    return decide


def run_trace(job: Job, bench: Bench, trace: str, num_steps: int, repeats: int) -> Traced:
    assert bench.changing is not None
    stretches = Stretches(bench, bench.changing.course([1.0] * num_steps))
    script = stretches.clairvoyant()
    static, start = stretches.best_static(), stretches.plans[bench.changing.cluster]
    effort = Effort(warmup=0, steps=num_steps, timeout_s=900)
    runs: dict[str, list[DriftRun]] = {STATIC: [], CLAIRVOYANT: [], RETUNED: []}
    for _ in range(repeats):
        controller = make_controller(job, bench, start, lambda _: None)
        for name, plan, decide in (
            (STATIC, static, None),
            (CLAIRVOYANT, script[0], by_script(script)),
            (RETUNED, start, controller.decide),
        ):
            done = bench.crew.train(plan, effort, lambda _: None, watched=False, decide=decide)
            runs[name].append(
                DriftRun(
                    steps_s=done.measured.steps_s,
                    plan=plan,
                    decisions=tuple(controller.decisions) if name == RETUNED else (),
                    cpu_s=sum(rank.cpu_s for rank in done.measured.ranks),
                )
            )
    changes = [step for step in range(1, num_steps) if stretches.mixes[step] != stretches.mixes[step - 1]]
    return Traced(trace=trace, changes=tuple(changes), runs={name: tuple(made) for name, made in runs.items()})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("cluster")
    parser.add_argument("out", type=Path)
    parser.add_argument("trace")
    parser.add_argument("steps", type=int)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    control = start_control()
    job = Job(workload=options.workload, clusters=(options.cluster,), results=options.out.parent, replay=options.trace)
    (cluster,) = check_job(job, control.size)
    bench = set_up(job, cluster, control)
    if not control.is_leader:
        follow(control, bench.runner)
        return
    traced = run_trace(job, bench, options.trace, options.steps, options.repeats)
    bench.crew.dismiss()
    write_json(
        options.out,
        Drift(
            command="nox -s drift",
            workload=options.workload,
            cluster=options.cluster,
            label=bench.cluster.label,
            traced=traced,
            environment=describe_environment(),
        ),
    )
    print(traced.summary(), flush=True)


main()
