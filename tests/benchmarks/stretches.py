"""The mixes that a trace goes through, and the plans that a search on the simulator finds for them, one by one or together."""

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
"""What another plan must promise for the clairvoyant to go by it."""
MOST_PLANS = 400
"""That are judged from each start."""
STARTS = 3
"""Of the search for the best static plan: the mixes that last longest."""


class Stretches:
    """One workload under one trace."""

    def __init__(  # noqa: PLR0913 - a job, and how its plans are searched
        self,
        info: WorkloadInfo,
        graph: OpGraph,
        limits: Bounds,
        mixes: Sequence[Cluster],
        *,
        most_plans: int = MOST_PLANS,
        allow_lossy: bool = False,
    ) -> None:
        """`mixes`: of each step."""
        self.mixes, self._most_plans, self._allow_lossy = list(mixes), most_plans, allow_lossy
        self._counts: dict[Cluster, int] = {}
        for cluster in mixes:
            self._counts[cluster] = self._counts.get(cluster, 0) + 1
        self.predictors = {
            cluster: Predictor(
                simulator=Simulator(info, graph, cost_model(graph, cluster)), bounds=limits, cluster=cluster
            )
            for cluster in self._counts
        }
        self.plans = {cluster: self._search(cluster, [cluster])[0] for cluster in self._counts}
        """The best for each mix by itself; shards are owned as its links call for."""

    def step_s(self, cluster: Cluster, plan: Plan) -> float:
        return self.predictors[cluster].simulator.step_s(plan)

    def total_s(self, plan: Plan) -> float:
        """All steps by one plan."""
        return sum(count * self.step_s(cluster, plan) for cluster, count in self._counts.items())

    def static_plans(self) -> list[Plan]:
        """The best static plan by the simulator, and the best that sends as the first stretch's does: the simulator does not
        know what many small messages cost a processor, so that both are to be measured where they differ.
        """
        best, first = self.best_static(), self.plans[self.mixes[0]]
        if _ways(best, first):
            return [best]
        splits = [best.batch, first.batch, *(plan.batch for plan in self.plans.values())]
        alike = [with_owners(replace(first, batch=batch), cluster) for batch in splits for cluster in self._counts]
        return [best, min(alike, key=self.total_s)]

    def oracles(self) -> list[list[Plan]]:
        """Who goes by the simulator's best plan for each stretch, and who only by its samples and owners of shards."""
        script, first = self.oracle(), self.plans[self.mixes[0]]
        if all(_ways(plan, first) for plan in script):
            return [script]
        alike = {cluster: self._alike(first, cluster) for cluster in self._counts}
        return [script, [alike[cluster] for cluster in self.mixes]]

    def _alike(self, first: Plan, cluster: Cluster) -> Plan:
        """The best for a mix that sends as another plan does."""
        splits = (self.plans[cluster].batch.samples, self.predictors[cluster].balanced_split(), first.batch.samples)
        plans = [with_owners(replace(first, batch=replace(first.batch, samples=split)), cluster) for split in splits]
        return min(plans, key=lambda plan: self.step_s(cluster, plan))

    def best_static(self) -> Plan:
        longest = sorted(self._counts, key=lambda cluster: -self._counts[cluster])[:STARTS]
        found = [self._search(cluster, list(self._counts)) for cluster in longest]
        plan, seconds = min(found, key=lambda entry: entry[1])
        # All contenders send alike unless it pays: the simulator does not know what many small messages cost a processor.
        alike = replace(self.plans[self.mixes[0]], batch=plan.batch)
        return alike if self.total_s(alike) <= seconds * (1 + LEAST) else plan

    def oracle(self) -> list[Plan]:
        """The plan of each step."""
        plans = [self.plans[self.mixes[0]]]
        for cluster in self.mixes[1:]:
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


def _ways(one: Plan, other: Plan) -> bool:
    """Whether two plans send alike, whoever owns shards."""
    return replace(one.comm, shares=()) == replace(other.comm, shares=()) and one.compression == other.compression


def with_owners(plan: Plan, cluster: Cluster) -> Plan:
    """Shards owned as the links of a mix call for, whatever the links are later."""
    if plan.comm.collective != "shards":
        return plan
    return replace(plan, comm=replace(plan.comm, shares=plan_shares(cluster)))
