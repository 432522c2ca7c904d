"""Random problems of provisioning, and the model once more in plain Python: slow, and independent of the compiled functions."""

from __future__ import annotations

import itertools
import math
import random

from autotune.provision.problem import Layer, Problem, ResourceType

REFERENCE_UNITS = 150
"""Of a stage without limit: the problems below need fewer."""


def random_problem(  # noqa: PLR0913 - the sizes of a problem
    seed: int, *, types: int, layers: int, limited: bool = False, floor: bool = True, forbid: float = 0.0
) -> Problem:
    """Times and prices without any relation; `forbid`: the share of (layer, type) pairs that cannot run."""
    rng = random.Random(seed)
    kinds = tuple(
        ResourceType(
            name=f"type{place}",
            price_per_hour=round(rng.uniform(0.1, 5), 2),
            limit=rng.randint(1, 8) if limited and rng.random() < 0.7 else None,
            alpha=round(rng.uniform(0.6, 0.97), 3),
            beta=round(rng.uniform(0.6, 0.97), 3),
        )
        for place in range(types)
    )
    rows = []
    for place in range(layers):
        compute = [round(rng.uniform(1e-3, 2e-2), 4) for _ in kinds]
        allowed = rng.randrange(types)
        compute = [math.inf if rng.random() < forbid and at != allowed else s for at, s in enumerate(compute)]
        transfer = tuple(round(rng.uniform(0, 1e-2), 4) for _ in kinds)
        rows.append(Layer(name=f"layer{place}", compute_s=tuple(compute), transfer_s=transfer))
    quickest = sum(min(layer.compute_s) for layer in rows)
    least = round(rng.uniform(0.5, 5) / quickest, 2) if floor else 0.0
    return Problem(types=kinds, layers=tuple(rows), examples=1e6, min_throughput=least)


def stages(assignment):
    """(first, last) of each maximal run."""
    runs, first = [], 0
    for _, group in itertools.groupby(assignment):
        length = len(list(group))
        runs.append((first, first + length - 1))
        first += length
    return runs


def stage_time(problem, kind, first, last, units):
    one = problem.types[kind]
    compute = sum(problem.layers[layer].compute_s[kind] for layer in range(first, last + 1))
    transfer = problem.layers[last].transfer_s[kind]
    return max(
        compute * (1 - one.alpha + one.alpha / units),
        transfer * (1 - one.beta + one.beta / units),
    )


def reference_cost(problem, assignment):
    """The least cost of an assignment, by every time that any stage can have; infinite if it cannot meet the floor."""
    runs = stages(assignment)
    most = [problem.types[assignment[first]].limit for first, _ in runs]
    times = [
        [
            stage_time(problem, assignment[first], first, last, k)
            for k in range(1, 1 + (REFERENCE_UNITS if cap is None else cap))
        ]
        for (first, last), cap in zip(runs, most, strict=True)
    ]
    best = math.inf
    for tau in sorted({s for row in times for s in row if s < math.inf}):
        if problem.min_throughput > 0 and tau * problem.min_throughput > 1 + 1e-12:
            break
        units = [next((k for k, s in enumerate(row, start=1) if s <= tau * (1 + 1e-12)), None) for row in times]
        if None in units or not within(problem, assignment, runs, units):
            continue
        price = sum(
            problem.types[assignment[first]].price_per_hour * k for (first, _), k in zip(runs, units, strict=True)
        )
        slowest = max(row[k - 1] for row, k in zip(times, units, strict=True))
        best = min(best, problem.examples * slowest / 3600 * price)
    return best


def within(problem, assignment, runs, units):
    used = {}
    for (first, _), count in zip(runs, units, strict=True):
        used[assignment[first]] = used.get(assignment[first], 0) + count
    return all(problem.types[kind].limit is None or count <= problem.types[kind].limit for kind, count in used.items())


def assignments(problem):
    return itertools.product(range(len(problem.types)), repeat=problem.num_layers)
