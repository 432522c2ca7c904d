"""All placement searches together: never worse than any of them with the simulations that it gives it, or than a start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from autotune.placement.groups.device_sets import MOST_SETS, DeviceSet, device_sets
from autotune.placement.groups.exact import MOST_ASSIGNMENTS, exact
from autotune.placement.groups.local import greedy, improve, islands
from autotune.placement.groups.methods import PLACEMENT_METHODS
from autotune.placement.groups.op_groups import MOST_GROUPS, group_ops
from autotune.placement.groups.problem import Choices, Objective, PlacementProblem, Progress, Value, step_seconds
from autotune.placement.groups.shares import better_shares
from autotune.placement.groups.tree_search import tree
from autotune.simulate.simulator import Simulator
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan

_MANY_RANKS, _SETS_OF_MANY = 64, 40
_MOST_MICRO_BATCHES = 32
_FIRST_SHARE = 0.4
"""Of the simulations, for one micro-batch; the rest is for more, in equal parts."""
_TREE_SHARE = 0.4
"""Of the simulations of a problem."""
_SHARES_SHARE = 0.15
"""Of all simulations: for the samples of the best placement's ranks."""


def portfolio(problem: PlacementProblem, random: Random) -> None:
    """Compositions, then greedy, then a tree from the best of these, and moves with what is left."""
    if problem.num_sets**problem.num_groups <= min(problem.most_simulations, MOST_ASSIGNMENTS):
        exact(problem, random)
        return
    islands(problem, random)
    most = problem.most_simulations
    problem.most_simulations = most - int(_TREE_SHARE * (most - problem.num_simulations))
    greedy(problem, random)
    problem.most_simulations = most
    tree_part = problem.num_simulations + (most - problem.num_simulations) // 2
    problem.most_simulations = tree_part
    tree(problem, random)
    problem.most_simulations = most
    improve(problem, random)


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """What is asked of a search."""

    method: str = "portfolio"
    simulations: int = 200
    most_tasks: float = 4e6
    most_groups: int = MOST_GROUPS
    seed: int = 0
    objective: Objective = step_seconds
    progress: Progress | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPlacement:
    """The best plan with groups of ops."""

    plan: Plan
    over: float
    """Memory beyond the devices', as a share of it. 0: it fits."""
    value: float
    """The objective."""
    num_simulations: int


def find_placement(simulator: Simulator, search: Search) -> FoundPlacement:
    """The best over numbers of micro-batches. Each search begins with what is best for fewer."""
    if simulator.operations is None:
        raise SpecError("the operations of the model are not known: placements need them")
    total = simulator.info.global_batch
    groups = group_ops(simulator.graph, simulator.operations, simulator.costs, total, search.most_groups)
    counts = [count for count in _doubled(total) if count <= _MOST_MICRO_BATCHES]
    found: list[tuple[Value, Plan, PlacementProblem]] = []
    used, most = 0, max(int(search.simulations * (1 - _SHARES_SHARE)), 1)
    for place, count in enumerate(counts):
        part = max(int((most - used) * (_FIRST_SHARE if place == 0 else 1 / (len(counts) - place))), 1)
        problem = make_problem(
            simulator, Choices(groups=groups, sets=_sets(simulator, count), micro_batches=count), search, part
        )
        for _, _, other in found:
            problem.judge(problem.as_in(other))
        PLACEMENT_METHODS[search.method].search(problem, search.seed)
        used += problem.num_simulations
        found.append((problem.judged[problem.best], problem.plan(problem.best), problem))
        if used >= most:
            break
    value, plan, problem = min(found, key=lambda one: one[0])
    problem.most_simulations = problem.num_simulations + search.simulations - used
    used -= problem.num_simulations
    if value[0] < math.inf:
        value, plan = better_shares(problem, plan, value)
    return FoundPlacement(plan=plan, over=value[0], value=value[1], num_simulations=used + problem.num_simulations)


def make_problem(simulator: Simulator, choices: Choices, search: Search, simulations: int) -> PlacementProblem:
    """One number of micro-batches."""
    return PlacementProblem(
        simulator=simulator,
        choices=choices,
        most_simulations=simulations,
        most_tasks=search.most_tasks * simulations / search.simulations,
        objective=search.objective,
        progress=search.progress,
    )


def _sets(simulator: Simulator, micro_batches: int) -> tuple[DeviceSet, ...]:
    many = len(simulator.costs.cluster.devices) > _MANY_RANKS
    return device_sets(
        simulator.costs, simulator.info.global_batch, micro_batches, _SETS_OF_MANY if many else MOST_SETS
    )


def _doubled(total: int) -> Sequence[int]:
    """1, 2, 4 … as far as they divide the batch."""
    found = [1]
    while total % (2 * found[-1]) == 0:
        found.append(2 * found[-1])
    return found
