"""PUCT tree search over placements, as TAG (arXiv 2302.06126) searches them.

A node is a prefix of decisions, the heaviest group first; a child is the next group's set of devices. The child with the largest

    q + c · p · √N / (1 + n),  c = √(children / 10)

is visited, where N and n count visits of node and child, q is the child's mean reward, and p its prior. A new node is scored by
one simulation in which undecided groups stay as in the best assignment before the search (TAG: as the first decision). The
reward is (step of that assignment / step) - 1 with its fourth root above 1, and -1 without room in memory. The prior is
uniform, or anything that meets `Prior`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from autotune.placement.groups.problem import Assignment, PlacementProblem, Value

_MOST_VISITS = 20
"""Per simulation: visits of what is known cost no simulation."""


class Prior(Protocol):
    """How promising the sets are for a group, given those of the groups decided before it."""

    def __call__(self, problem: PlacementProblem, decided: Sequence[tuple[int, int]], group: int, /) -> Sequence[float]:
        """Of each set, summing to 1. `decided`: groups and their sets."""


def uniform_prior(problem: PlacementProblem, _decided: Sequence[tuple[int, int]], _group: int) -> Sequence[float]:
    """Nothing is known."""
    return [1 / problem.num_sets] * problem.num_sets


@dataclass(kw_only=True, slots=True)
class _Node:
    priors: Sequence[float]
    visits: list[int]
    rewards: list[float]
    children: dict[int, _Node] = field(default_factory=dict)

    def choose(self, random: Random) -> int:
        c, total = math.sqrt(len(self.priors) / 10), sum(self.visits)
        scores = [
            (reward / visits if visits else 0.0) + c * prior * math.sqrt(total + 1) / (1 + visits)
            for prior, visits, reward in zip(self.priors, self.visits, self.rewards, strict=True)
        ]
        most = max(scores)
        return random.choice([place for place, score in enumerate(scores) if score == most])


def tree(problem: PlacementProblem, random: Random, prior: Prior = uniform_prior) -> None:
    """Playouts until nothing more may be simulated."""
    if not problem.judged:
        problem.judge(problem.best)
    base, order = problem.best, problem.heaviest_first()
    root = _node(problem, prior, [], order[0])
    for _ in range(_MOST_VISITS * max(problem.most_simulations - problem.num_simulations, 0)):
        if problem.is_spent:
            return
        _playout(problem, prior, root, base, order, random)


def _node(problem: PlacementProblem, prior: Prior, decided: Sequence[tuple[int, int]], group: int) -> _Node:
    size = problem.num_sets
    return _Node(priors=prior(problem, decided, group), visits=[0] * size, rewards=[0.0] * size)


def _playout(  # noqa: PLR0913, PLR0917 - the state of a search
    problem: PlacementProblem, prior: Prior, root: _Node, base: Assignment, order: Sequence[int], random: Random
) -> None:
    node, path, assignment = root, list[tuple[_Node, int]](), list(base)
    decided: list[tuple[int, int]] = []
    for place, group in enumerate(order):
        chosen = node.choose(random)
        path.append((node, chosen))
        decided.append((group, chosen))
        assignment[group] = chosen
        if chosen not in node.children:
            if place + 1 < len(order):
                node.children[chosen] = _node(problem, prior, decided, order[place + 1])
            break
        node = node.children[chosen]
    reward = reward_of(problem.judge(tuple(assignment)), problem.judged[base])
    for one, chosen in path:
        one.visits[chosen] += 1
        one.rewards[chosen] += reward


def reward_of(value: Value, base: Value) -> float:
    """Of an assignment, beside the one that the search began with."""
    if value[0] > 0 or not math.isfinite(value[1]):
        return -1.0
    if base[0] > 0 or not math.isfinite(base[1]):
        return 1.0
    gain = base[1] / value[1] - 1 if value[1] > 0 else 1.0
    return gain if gain <= 1 else gain**0.25
