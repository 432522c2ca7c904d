"""A job in a scenario in simulated time: the noisy statistics of its steps, under the decisions of a controller."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from autotune.jobs.context import capture_workload, workload_info
from autotune.jobs.job import Job
from autotune.online.candidates import candidates
from autotune.online.comm_controller import CommController
from autotune.online.controller import Controller
from autotune.online.learning import Memory
from autotune.online.link_estimate import LinkEstimate
from autotune.online.meta_network import MetaNetwork
from autotune.online.priors import priors_of
from autotune.online.simulated_steps import simulated_step
from autotune.online.simulator_check import SimulatorCheck
from autotune.profilers.step_stats import StepRow, StepStats
from autotune.results.store.decision import LOOK
from autotune.results.store.record import WorkloadInfo
from autotune.runtime.transport.link_check import num_rounds
from autotune.simulate.cost_sources import cost_model
from autotune.workloads.changes.scenario import ChangingCluster
from autotune.workloads.changes.scenario_file import load_scenario
from autotune.workloads.cluster import Cluster, load_cluster
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import Plan
from autotune.workloads.registry import load_workload
from autotune.workloads.split import bounds
from tests.benchmarks.stretches import Stretches

FEW_PLANS = 150


@cache
def captured(workload: str) -> tuple[WorkloadInfo, OpGraph]:
    loaded = load_workload(workload, {})
    graph = capture_workload(loaded, 0)
    job = Job(workload=workload, clusters=("mixed4",), results=Path())
    return workload_info(job, loaded.global_batch, graph), graph


@dataclass
class VirtualRun:
    """A job in a scenario."""

    stretches: Stretches
    stated: Cluster
    noise: float = 0.01
    seed: int = 1
    _steps: dict[tuple[Cluster, Plan], list[StepStats]] = field(default_factory=dict)

    def step(self, cluster: Cluster, plan: Plan) -> list[StepStats]:
        if (cluster, plan) not in self._steps:
            simulator = self.stretches.predictors[cluster].simulator
            self._steps[cluster, plan] = simulated_step(simulator.simulate(plan), plan, simulator.wire_bytes(plan))
        return self._steps[cluster, plan]

    def total_s(self, plans: list[Plan]) -> float:
        clusters = self.stretches.clusters
        return sum(self.step(cluster, plan)[0].step_s for cluster, plan in zip(clusters, plans, strict=True))

    def retuned_s(self, controller: Controller) -> float:
        """Total time of all steps under the plans of the controller, with noise."""
        draw, spent_s, closed, probed = random.Random(self.seed), 0.0, None, False
        for number, cluster in enumerate(self.stretches.clusters):
            stats = self.step(cluster, controller.plan)
            factors = [1 + abs(draw.gauss(0, self.noise)) for _ in stats]
            row = StepRow(
                step=number,
                samples=controller.plan.batch.samples,
                compute_s=tuple(one.compute_s * factor for one, factor in zip(stats, factors, strict=True)),
                closed=closed,
                arrivals=received(cluster, draw) if probed else None,
            )
            step_s = stats[0].step_s * max(factors)
            closed = tuple(replace(one, step=number, step_s=step_s) for one in stats)
            decision = controller.decide(row)
            probed = decision is not None and decision.kind == LOOK
            spent_s += step_s
        return spent_s


def received(cluster: Cluster, draw: random.Random) -> tuple[tuple[float, ...], ...]:
    """The result of a link probe, with an error of some percent."""
    links = [host.link for host in cluster.hosts]
    return tuple(
        tuple(
            min(links[(host - number) % len(links)].up_bytes_per_s, links[host].down_bytes_per_s) * draw.gauss(1, 0.05)
            for number in range(1, num_rounds(len(links)) + 1)
        )
        for host in range(len(links))
    )


def virtual_run(scenario: str, num_steps: int, *, workload: str = "vgg", cluster: str = "mixed4") -> VirtualRun:
    info, graph = captured(workload)
    stated = load_cluster(cluster)
    clusters = ChangingCluster(stated, load_scenario(scenario)).course([1.0] * num_steps)
    limits = bounds(len(stated.devices), info.global_batch)
    return VirtualRun(Stretches(info, graph, limits, clusters, most_plans=FEW_PLANS), stated)


def controller_for(run: VirtualRun, start: Plan, *, checks_simulator: bool = True) -> Controller:
    """The controller of `train --online`; without the simulator check as for a job without a cost model."""
    info, graph = captured(run.stretches.predictors[run.stated].simulator.info.name)
    predictor = run.stretches.predictors[run.stated]
    space = predictor.space(("gloo",), allow_lossy=False)
    priors = priors_of(graph, cost_model(graph, run.stated), "gloo")

    def candidates_for(running: Plan):
        return candidates(space, running.batch.samples, transport="gloo", also=[running])

    check = SimulatorCheck(info, graph) if checks_simulator else None
    comm = CommController(
        priors, candidates_for, Memory(MetaNetwork.shipped()), links=LinkEstimate(run.stated), check=check
    )
    return Controller(start, predictor.bounds, info.global_batch, comm=comm)
