"""Simple placement searches: composition along the chain, greedy with moves, random."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise, product
from random import Random

from autotune.placement.groups.problem import Assignment, PlacementProblem

_WEIGHTS = (1.0, 0.3, 3.0)
"""Of messages and of sums, by which the composition is varied: the estimate knows no overlap."""
_CHAINS = 0.3
"""Of the simulations."""
_MOST_ESTIMATED = 5000
"""Up to so many assignments, all are estimated."""
_MOST_UNIFORM = 8
_MOST_DRAWS = 50
"""Per simulation: what was drawn before, or is too large to be simulated, costs none."""
_DRAWN = 60
"""Moves that are drawn and estimated for each few that are simulated."""
_TRIED = 6
_PATIENCE = 25
"""Rounds without an improvement before the search ends."""
_ELITE, _FROM_BEST = 5, 0.7
"""Moves start at the best of these, or at the others."""


def random_assignments(problem: PlacementProblem, random: Random) -> None:
    """Independent draws."""
    possible = problem.num_sets**problem.num_groups
    for _ in range(_MOST_DRAWS * problem.most_simulations):
        if problem.is_spent or len(problem.judged) == possible:
            return
        problem.judge(tuple(random.randrange(problem.num_sets) for _ in range(problem.num_groups)))


def islands(problem: PlacementProblem, _random: Random) -> None:
    """The best sets for all groups alike, and compositions with unlike weights of messages and sums."""
    for assignment in problem.uniform()[:_MOST_UNIFORM]:
        problem.judge(assignment)
    few = max(int(_CHAINS * problem.most_simulations), 1)
    found: Collection[Assignment]
    if problem.num_sets**problem.num_groups <= _MOST_ESTIMATED:
        found = list(product(range(problem.num_sets), repeat=problem.num_groups))
    else:
        found = {one for hops in _WEIGHTS for sums in _WEIGHTS for one in problem.estimate.chains(few, hops, sums)}
        found |= {problem.estimate.runs(line) for line in problem.lines()}
    for assignment in sorted(found, key=lambda one: (problem.estimate.step_s(one), one))[:few]:
        problem.judge(assignment)


def greedy(problem: PlacementProblem, random: Random) -> None:
    """From the best so far: each group on the sets that are best by estimate, then drawn moves of neighbouring groups."""
    if not problem.judged:
        for assignment in problem.uniform()[:_MOST_UNIFORM]:
            problem.judge(assignment)
    for group in problem.heaviest_first():
        now = problem.best
        near = [(*now[:group], chosen, *now[group + 1 :]) for chosen in range(problem.num_sets)]
        for assignment in sorted(set(near) - problem.judged.keys(), key=problem.estimate.step_s)[:_TRIED]:
            problem.judge(assignment)
    improve(problem, random)


def improve(problem: PlacementProblem, random: Random) -> None:
    """Moves from the best few so far, until nothing more may be simulated or none has improved the best for long."""
    failed = 0
    while failed < _PATIENCE and not problem.is_spent:
        value, elite = problem.judged[problem.best], problem.elite(_ELITE)
        drawn = {move for _ in range(_DRAWN) for move in _moves(problem, elite, random)} - problem.judged.keys()
        if not drawn:
            return
        promising = sorted(drawn, key=lambda one: (problem.estimate.step_s(one), one))
        surprising = random.sample(promising[_TRIED:], min(_TRIED // 2, len(promising[_TRIED:])))
        for assignment in (*promising[:_TRIED], *surprising):
            problem.judge(assignment)
        failed = failed + 1 if problem.judged[problem.best] >= value else 0


def _moves(problem: PlacementProblem, elite: Sequence[Assignment], random: Random) -> Iterator[Assignment]:
    """A run of neighbours to one set; all groups of a set to another; a boundary between sets moved by one group; two groups."""
    now = elite[0] if random.random() < _FROM_BEST else random.choice(elite)
    size, chosen = problem.num_groups, random.randrange(problem.num_sets)
    first = random.randrange(size)
    last = random.choice([first, random.randrange(first, size), size - 1])
    yield (*now[:first], *(chosen,) * (last - first + 1), *now[last + 1 :])
    old = now[random.randrange(size)]
    yield tuple(chosen if one == old else one for one in now)
    both = list(now)
    both[first], both[random.randrange(size)] = chosen, random.randrange(problem.num_sets)
    yield tuple(both)
    bounds = [place for place, (a, b) in enumerate(pairwise(now)) if a != b]
    if bounds:
        place = random.choice(bounds)
        yield (*now[:place], now[place + 1], *now[place + 1 :])
        yield (*now[: place + 1], now[place], *now[place + 2 :])
