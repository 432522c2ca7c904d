"""The mixes that a trace goes through, and the plans that a search on the simulator finds for them, one by one or together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.predict import Predictor
from autotune.search.descent import descend
from autotune.simulate.collectives import plan_shares
from autotune.simulate.cost_model import cost_model
from autotune.simulate.simulator import Simulator
from results.record import WorkloadInfo
from workloads.cluster import Cluster
from workloads.graph import OpGraph
from workloads.plan import Plan
from workloads.split import Bounds

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
        for mix in mixes:
            self._counts[mix] = self._counts.get(mix, 0) + 1
        self.predictors = {
            mix: Predictor(simulator=Simulator(info, graph, cost_model(graph, mix)), bounds=limits, cluster=mix)
            for mix in self._counts
        }
        self.plans = {mix: self._search(mix, [mix])[0] for mix in self._counts}
        """The best for each mix by itself; shards are owned as its links call for."""

    def step_s(self, mix: Cluster, plan: Plan) -> float:
        return self.predictors[mix].simulator.step_s(plan)

    def total_s(self, plan: Plan) -> float:
        """All steps by one plan."""
        return sum(count * self.step_s(mix, plan) for mix, count in self._counts.items())

    def static_plans(self) -> list[Plan]:
        """The best static plan by the simulator, and the best that sends as the first stretch's does: the simulator does not
        know what many small messages cost a processor, so that both are to be measured where they differ.
        """
        best, first = self.best_static(), self.plans[self.mixes[0]]
        if _ways(best, first):
            return [best]
        splits = [best.batch, first.batch, *(plan.batch for plan in self.plans.values())]
        alike = [with_owners(replace(first, batch=batch), mix) for batch in splits for mix in self._counts]
        return [best, min(alike, key=self.total_s)]

    def clairvoyants(self) -> list[list[Plan]]:
        """Who goes by the simulator's best plan for each stretch, and who only by its samples and owners of shards."""
        script, first = self.clairvoyant(), self.plans[self.mixes[0]]
        if all(_ways(plan, first) for plan in script):
            return [script]
        alike = {mix: self._alike(first, mix) for mix in self._counts}
        return [script, [alike[mix] for mix in self.mixes]]

    def _alike(self, first: Plan, mix: Cluster) -> Plan:
        """The best for a mix that sends as another plan does."""
        splits = (self.plans[mix].batch.samples, self.predictors[mix].balanced_split(), first.batch.samples)
        plans = [with_owners(replace(first, batch=replace(first.batch, samples=split)), mix) for split in splits]
        return min(plans, key=lambda plan: self.step_s(mix, plan))

    def best_static(self) -> Plan:
        longest = sorted(self._counts, key=lambda mix: -self._counts[mix])[:STARTS]
        found = [self._search(mix, list(self._counts)) for mix in longest]
        plan, seconds = min(found, key=lambda entry: entry[1])
        # All contenders send alike unless it pays: the simulator does not know what many small messages cost a processor.
        alike = replace(self.plans[self.mixes[0]], batch=plan.batch)
        return alike if self.total_s(alike) <= seconds * (1 + LEAST) else plan

    def clairvoyant(self) -> list[Plan]:
        """The plan of each step."""
        plans = [self.plans[self.mixes[0]]]
        for mix in self.mixes[1:]:
            best = self.plans[mix]
            same = replace(plans[-1], batch=best.batch)
            plan = same if self.step_s(mix, same) <= self.step_s(mix, best) * (1 + LEAST) else best
            stays = self.step_s(mix, plans[-1]) <= self.step_s(mix, plan) * (1 + LEAST)
            plans.append(plans[-1] if stays else plan)
        return plans

    def _search(self, start: Cluster, judged: list[Cluster]) -> tuple[Plan, float]:
        predictor = self.predictors[start]
        space = predictor.space(("gloo",), allow_lossy=self._allow_lossy)

        def judge(plan: Plan) -> float:
            owned = with_owners(plan, start)
            return sum(self._counts[mix] * self.step_s(mix, owned) for mix in judged)

        seconds, plan = descend(space, predictor.balanced_split(), judge, most=self._most_plans)[0]
        return with_owners(plan, start), seconds


def _ways(one: Plan, other: Plan) -> bool:
    """Whether two plans send alike, whoever owns shards."""
    return replace(one.comm, shares=()) == replace(other.comm, shares=()) and one.compression == other.compression


def with_owners(plan: Plan, mix: Cluster) -> Plan:
    """Shards owned as the links of a mix call for, whatever the links are later."""
    if plan.comm.collective != "shards":
        return plan
    return replace(plan, comm=replace(plan.comm, shares=plan_shares(mix)))
