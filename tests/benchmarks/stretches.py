"""The clusters that a scenario consists of, and the plans that a search on the simulator finds for one or all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.jobs.predict import Predictor
from autotune.results.store.record import WorkloadInfo
from autotune.search.local_search import descend
from autotune.simulate.collectives import plan_shares
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.workloads.cluster import Cluster
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import Plan
from autotune.workloads.split import Bounds

LEAST = 0.01
"""Least predicted gain for which the oracle switches."""
MOST_PLANS = 400
"""Plans that a search simulates from each start."""
STARTS = 3
"""Starts of the search for the best static plan: the clusters that last longest."""


class Stretches:
    """One workload in one scenario."""

    def __init__(  # noqa: PLR0913 - a job, and how its plans are searched
        self,
        info: WorkloadInfo,
        graph: OpGraph,
        limits: Bounds,
        clusters: Sequence[Cluster],
        *,
        most_plans: int = MOST_PLANS,
        allow_lossy: bool = False,
    ) -> None:
        """`clusters`: of each step."""
        self.clusters, self._most_plans, self._allow_lossy = list(clusters), most_plans, allow_lossy
        self._counts: dict[Cluster, int] = {}
        for cluster in clusters:
            self._counts[cluster] = self._counts.get(cluster, 0) + 1
        self.predictors = {
            cluster: Predictor(
                simulator=Simulator(info, graph, cost_model(graph, cluster)), bounds=limits, cluster=cluster
            )
            for cluster in self._counts
        }
        self.plans = {cluster: self._search(cluster, [cluster])[0] for cluster in self._counts}
        """The best plan for each cluster, with the owner shares for its links."""

    def step_s(self, cluster: Cluster, plan: Plan) -> float:
        return self.predictors[cluster].simulator.step_s(plan)

    def total_s(self, plan: Plan) -> float:
        """Total time of all steps under one plan."""
        return sum(count * self.step_s(cluster, plan) for cluster, count in self._counts.items())

    def static_plans(self) -> list[Plan]:
        """The best static plan by the simulator, and the best one with the communication configuration of the first stretch.

        The simulator does not model the CPU time of many small messages. If the two plans differ, both must be measured.
        """
        best, first = self.best_static(), self.plans[self.clusters[0]]
        if _same_configuration(best, first):
            return [best]
        splits = [best.batch, first.batch, *(plan.batch for plan in self.plans.values())]
        alike = [with_owners(replace(first, batch=batch), cluster) for batch in splits for cluster in self._counts]
        return [best, min(alike, key=self.total_s)]

    def oracles(self) -> list[list[Plan]]:
        """The oracle with the best plan for each stretch, and the one that changes only samples and owner shares."""
        script, first = self.oracle(), self.plans[self.clusters[0]]
        if all(_same_configuration(plan, first) for plan in script):
            return [script]
        alike = {cluster: self._alike(first, cluster) for cluster in self._counts}
        return [script, [alike[cluster] for cluster in self.clusters]]

    def _alike(self, first: Plan, cluster: Cluster) -> Plan:
        """The best plan for a cluster with the communication configuration of another plan."""
        splits = (self.plans[cluster].batch.samples, self.predictors[cluster].balanced_split(), first.batch.samples)
        plans = [with_owners(replace(first, batch=replace(first.batch, samples=split)), cluster) for split in splits]
        return min(plans, key=lambda plan: self.step_s(cluster, plan))

    def best_static(self) -> Plan:
        longest = sorted(self._counts, key=lambda cluster: -self._counts[cluster])[:STARTS]
        found = [self._search(cluster, list(self._counts)) for cluster in longest]
        plan, seconds = min(found, key=lambda entry: entry[1])
        # The configuration changes only for a clear gain: the simulator does not model the CPU time of many small messages.
        alike = replace(self.plans[self.clusters[0]], batch=plan.batch)
        return alike if self.total_s(alike) <= seconds * (1 + LEAST) else plan

    def oracle(self) -> list[Plan]:
        """The oracle's plan for each step."""
        plans = [self.plans[self.clusters[0]]]
        for cluster in self.clusters[1:]:
            best = self.plans[cluster]
            same = replace(plans[-1], batch=best.batch)
            plan = same if self.step_s(cluster, same) <= self.step_s(cluster, best) * (1 + LEAST) else best
            stays = self.step_s(cluster, plans[-1]) <= self.step_s(cluster, plan) * (1 + LEAST)
            plans.append(plans[-1] if stays else plan)
        return plans

    def _search(self, start: Cluster, judged: list[Cluster]) -> tuple[Plan, float]:
        predictor = self.predictors[start]
        space = predictor.space(("gloo",), allow_lossy=self._allow_lossy)

        def judge(plan: Plan) -> float:
            owned = with_owners(plan, start)
            return sum(self._counts[cluster] * self.step_s(cluster, owned) for cluster in judged)

        seconds, plan = descend(space, predictor.balanced_split(), judge, most=self._most_plans)[0]
        return with_owners(plan, start), seconds


def _same_configuration(one: Plan, other: Plan) -> bool:
    """Whether two plans have the same communication configuration, except for owner shares."""
    return replace(one.comm, shares=()) == replace(other.comm, shares=()) and one.compression == other.compression


def with_owners(plan: Plan, cluster: Cluster) -> Plan:
    """A plan with the owner shares for the links of a cluster."""
    if plan.comm.collective != "shards":
        return plan
    return replace(plan, comm=replace(plan.comm, shares=plan_shares(cluster)))
