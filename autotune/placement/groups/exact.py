"""The best assignment of one problem by branch and bound, for a few groups and sets.

Groups are decided in their order. No completion of a prefix is faster than

the busiest rank with what is decided, or the mean over ranks with the least work of what is not: devices are serial, and the
lanes of a pass together cost no less than the pass. Where passes were measured at some numbers of samples, that need not hold,
and all assignments are simulated.
"""

from __future__ import annotations

from random import Random

import numpy as np

from autotune.placement.groups.problem import PlacementProblem, step_seconds
from autotune.simulate.task_graph import Floats
from autotune.workloads.errors import SpecError

MOST_ASSIGNMENTS = 200_000
_SLACK = 1 - 1e-9


def exact(problem: PlacementProblem, _random: Random) -> None:
    """Proven optimal if the problem's simulations suffice."""
    possible = problem.num_sets**problem.num_groups
    if possible > MOST_ASSIGNMENTS:
        raise SpecError(
            f"{problem.num_groups} groups on {problem.num_sets} sets of devices are {possible} assignments, and the exact "
            f"search takes at most {MOST_ASSIGNMENTS}: ask for fewer groups, or use another method"
        )
    for assignment in problem.uniform()[:3]:
        problem.judge(assignment)
    _Search(problem).run((), np.zeros(len(problem.simulator.costs.cluster.devices)))


class _Search:
    def __init__(self, problem: PlacementProblem) -> None:
        self._problem = problem
        costs, estimate, sets = problem.simulator.costs, problem.estimate, problem.choices.sets
        self._is_bounded = problem.objective is step_seconds and not any(
            times.points for times in (costs.forward, costs.backward, costs.whole) if times is not None
        )
        self._num_ranks = len(costs.cluster.devices)
        num = problem.choices.micro_batches
        self._load = np.zeros((problem.num_groups, problem.num_sets, self._num_ranks))
        for number, one in enumerate(sets):
            self._load[:, number, list(one.ranks)] = estimate.busy_s[number] * num
        least = self._load.sum(axis=2).min(axis=1)
        self._rest = np.concatenate([np.cumsum(least[::-1])[::-1], [0.0]])
        self._order = np.argsort(estimate.compute_s, axis=1)

    def run(self, prefix: tuple[int, ...], load: Floats) -> None:
        problem, place = self._problem, len(prefix)
        if problem.is_spent:
            return
        if place == problem.num_groups:
            problem.judge(prefix)
            return
        for chosen in self._order[place].tolist():
            more = load + self._load[place, chosen]
            bound = max(float(more.max()), (float(more.sum()) + float(self._rest[place + 1])) / self._num_ranks)
            over, best = problem.judged[problem.best]
            if self._is_bounded and over == 0 and bound * _SLACK >= best:
                continue
            self.run((*prefix, chosen), more)
