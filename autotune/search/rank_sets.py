"""Which sets of ranks are worth a plan: devices that cost a step more than they add are left out.

A slow device or one behind a slow link can make every step slower than the step of the others alone: its gradients have to
pass its link however few samples it has, and the fixed costs of a step are paid on it. Of n ranks there are 2^n sets.

- **Few sets**: like ranks are alike, so sets differ by what they hold, not by which of several like ranks. Each set has a lower
  bound (that of its links, and of its computing in perfect balance). Sets are predicted in the order of their bounds, until
  the next bound is above the best prediction. So the best of all sets is found.
- **Many sets**: from all ranks, from each kind of devices and of hosts alone, and from the fastest of the kinds and of the
  hosts, a search drops or adds a kind of devices or hosts, a rack, a host, or some devices of a kind, while it pays
  (`autotune.search.set_moves`).

Inputs: a simulator, bounds on samples, the plans to try for a split. Output: sets with the best plan of each, the best first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from autotune.results.store.forecast import LeftOutRanks
from autotune.search.local_search import knob_plans
from autotune.search.methods import Judge
from autotune.search.predicted_costs import rank_costs
from autotune.search.set_moves import Ranks, distinct_sets, neighbours, starts
from autotune.simulate.limit import least_sample_s, step_limit
from autotune.simulate.simulator import Simulator
from autotune.space.pipeline_points import NO_STAGES
from autotune.space.rank_sets import RankSets, among
from autotune.space.space import Space
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import AutotuneError
from autotune.workloads.plan import Plan
from autotune.workloads.rank_kinds import kinds_of_ranks, members
from autotune.workloads.split import Bounds, RankCost, balanced

_FEW_SETS = 128
_MOST_PREDICTED = 150
"""Sets that a search among many predicts."""
_MOST_CLIMBS = 3
_MOST_KNOBS = 6
"""Choices of knobs that are tried for each of many sets."""
MOST_KEPT = 4
_WORTH = 1.2
"""How far behind the best a set may be predicted and still be worth a trial."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSet:
    """A set of ranks, and the best plan that is predicted for it."""

    ranks: Ranks
    value: float
    plan: Plan


@dataclass(frozen=True, kw_only=True)  # no slots: tables are kept in the instance
class SetProblem:
    """For what the best set is searched."""

    simulator: Simulator
    limits: Bounds
    plans: Callable[[tuple[int, ...]], Iterable[Plan]]
    """What to try for a split."""
    judge: Judge
    value_of: Callable[[Ranks, float], float] = lambda _, seconds: seconds
    """The least value of a plan that uses these ranks for so many seconds at least."""

    @property
    def cluster(self) -> Cluster:
        return self.simulator.costs.cluster

    @property
    def total(self) -> int:
        return self.simulator.info.global_batch

    @cached_property
    def able(self) -> Ranks:
        """The ranks whose memory holds the least samples that a rank can have."""
        bounds = zip(self.limits.minimums, self.limits.caps, strict=True)
        return tuple(rank for rank, (low, high) in enumerate(bounds) if high >= max(low, 1))

    @cached_property
    def costs(self) -> list[RankCost]:
        return rank_costs(self.simulator)

    @cached_property
    def _sample_s(self) -> list[float]:
        return least_sample_s(self.simulator.costs, self.total)

    def split(self, ranks: Ranks) -> tuple[int, ...] | None:
        """The batch over these ranks, in balance; None where they cannot hold it."""
        try:
            return balanced(self.costs, self.total, among(self.limits, ranks))
        except AutotuneError:
            return None

    def bound(self, ranks: Ranks) -> float:
        """No plan that uses exactly these ranks has a smaller value."""
        part, sample_s = self.cluster.part(ranks), [self._sample_s[rank] for rank in ranks]
        seconds = step_limit(sample_s, part, self.simulator.graph, global_batch=self.total).step_s
        return self.value_of(ranks, seconds)

    def best(self, ranks: Ranks) -> RankSet | None:
        """None where no plan can run."""
        if (samples := self.split(ranks)) is None:
            return None
        found = min(((self.judge(plan), plan) for plan in self.plans(samples)), key=lambda one: one[0], default=None)
        if found is None or math.isinf(found[0]):
            return None
        return RankSet(ranks=ranks, value=found[0], plan=found[1])


def worthwhile_sets(
    simulator: Simulator, space: Space, judge: Judge, value_of: Callable[[Ranks, float], float] | None = None
) -> list[RankSet]:
    """Sets that leave ranks out and are predicted to be better than all ranks together, or nearly so; the best first."""
    if len(space.limits.caps) < 2:
        return []
    plain = replace(space, staged=NO_STAGES)
    problem = SetProblem(
        simulator=simulator,
        limits=space.limits,
        plans=lambda samples: knob_plans(plain, samples),
        judge=judge,
        value_of=value_of or (lambda _, seconds: seconds),
    )
    found = best_sets(problem)
    if not found or found[0].ranks == problem.able == tuple(range(len(space.limits.caps))):
        return []
    least = found[0].value
    return [one for one in found if len(one.ranks) < len(space.limits.caps) and one.value <= _WORTH * least][:MOST_KEPT]


def left_out_ranks(simulator: Simulator, plan: Plan, limits: Bounds) -> tuple[LeftOutRanks, ...]:
    """The ranks that a data-parallel plan leaves out, kind by kind, with the predicted step if it used them as well."""
    if not plan.leaves_out or plan.is_placed:
        return ()
    cluster, used = simulator.costs.cluster, set(plan.used_ranks)
    problem = SetProblem(
        simulator=simulator,
        limits=limits,
        plans=lambda samples: [replace(plan, batch=replace(plan.batch, samples=samples))],
        judge=simulator.fitting_step_s,
    )
    found = []
    for kind in members(kinds_of_ranks(cluster)):
        if ranks := tuple(rank for rank in kind if rank not in used):
            able = set(problem.able).issuperset(ranks)
            together = problem.best(tuple(sorted({*used, *ranks}))) if able else None
            device, step_s = cluster.devices[ranks[0]].name, None if together is None else together.value
            found.append(LeftOutRanks(ranks=ranks, device=device, step_with_s=step_s))
    return tuple(found)


def as_choices(sets: Iterable[RankSet]) -> RankSets:
    """For the coordinates of a search."""
    return RankSets(sets=tuple(one.ranks for one in sets))


def best_sets(problem: SetProblem) -> list[RankSet]:
    """Sets of ranks with what is predicted for them, the best first; that of all ranks is among them if it can run."""
    sets = distinct_sets(problem.cluster, problem.able, most=_FEW_SETS)
    found = _all_of(problem, sets) if sets is not None else _climbed(problem)
    return sorted(found, key=lambda one: (one.value, len(one.ranks)))


def _all_of(problem: SetProblem, sets: list[Ranks]) -> Iterator[RankSet]:
    """Predicts sets until no other can be better than the best; that of all ranks always."""
    least = math.inf
    for bound, _, ranks in sorted((problem.bound(ranks), -len(ranks), ranks) for ranks in sets):
        if (bound < least or ranks == problem.able) and (one := problem.best(ranks)) is not None:
            least = min(least, one.value)
            yield one


def _climbed(problem: SetProblem) -> list[RankSet]:
    """From the best of the starts, moves to the best neighbour while there is a better one."""
    seen: dict[Ranks, RankSet | None] = {}

    def look(sets: Iterable[Ranks]) -> list[RankSet]:
        for ranks in sets:
            if ranks not in seen and len(seen) < _MOST_PREDICTED:
                seen[ranks] = problem.best(ranks)
        return [one for ranks in sets if (one := seen.get(ranks)) is not None]

    problem = replace(problem, plans=_few_knobs(problem))
    first = sorted(look(list(starts(problem.cluster, problem.able, problem.costs))), key=lambda one: one.value)
    for start in first[:_MOST_CLIMBS]:
        best = start
        while near := look(list(neighbours(problem.cluster, problem.able, best.ranks))):
            better = min(near, key=lambda one: one.value)
            if better.value >= best.value:
                break
            best = better
    return [one for one in seen.values() if one is not None]


def _few_knobs(problem: SetProblem) -> Callable[[tuple[int, ...]], Iterable[Plan]]:
    """The knobs that are best for all ranks and for a few, of each reducer and collective one: they differ little between sets."""
    found: dict[tuple[str, bool, str], tuple[float, Plan]] = {}
    some = tuple(problem.able[: max(len(problem.able) // 4, 1)])
    for split in (problem.split(problem.able), problem.split(some)):
        for plan in problem.plans(split) if split is not None else ():
            key, value = (plan.comm.reducer, plan.comm.crosses_steps, plan.comm.collective), problem.judge(plan)
            if key not in found or value < found[key][0]:
                found[key] = value, plan
    kept = [plan for _, plan in sorted(found.values(), key=lambda one: one[0])[:_MOST_KNOBS]]

    def with_split(samples: tuple[int, ...]) -> list[Plan]:
        return [replace(plan, batch=replace(plan.batch, samples=samples)) for plan in kept]

    return with_split
