"""An assignment of layers to types, and the plan that it becomes: stages, units, throughput, cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.provision import compiled
from autotune.provision.problem import Ints, Problem

ALL_STEPS = 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A maximal run of consecutive layers on one type, and its units."""

    type: str
    first: int
    last: int
    """Inclusive."""
    units: int
    compute_s: float
    """Per example, on one unit."""
    transfer_s: float
    seconds: float
    """Per example, on its units."""
    price_per_hour: float
    """Of all its units."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is rented, and what follows from it."""

    assignment: tuple[int, ...]
    stages: tuple[Stage, ...]
    throughput: float
    cost: float
    price_per_hour: float

    def units_of(self, name: str) -> int:
        return sum(stage.units for stage in self.stages if stage.type == name)


def arrays(problem: Problem) -> tuple[Any, ...]:
    """The problem as the compiled functions take it."""
    tables = problem.tables
    return tables.compute_s, tables.transfer_s, tables.alpha, tables.beta, tables.price, tables.cap


def best_rate(
    problem: Problem,
    assignment: Ints,
    *,
    longest_s: float | None = None,
    most_rate: float = math.inf,
    most_steps: int = ALL_STEPS,
) -> tuple[float, float]:
    """The least price x slowest stage of an assignment, and its slowest stage; infinite if the floor or limits cannot be met.

    With a finite `most_rate`, the fastest that is not above it instead.
    """
    units = np.zeros(problem.num_layers)
    longest_s = problem.slowest_s if longest_s is None else longest_s
    limit = problem.tables.limit
    rate, slowest = compiled.best_units(arrays(problem), limit, assignment, longest_s, most_rate, most_steps, units)
    return float(rate), float(slowest)


def plan_at(problem: Problem, assignment: Sequence[int] | Ints, slowest_s: float) -> Plan:
    """The plan of an assignment with the fewest units for stages of at most `slowest_s`."""
    stages = tuple(_stages(problem, assignment, slowest_s))
    slowest = max(stage.seconds for stage in stages)
    price = math.fsum(stage.price_per_hour for stage in stages)
    throughput = 1 / slowest
    if throughput < problem.min_throughput <= throughput * (1 + 2 * compiled.SAME):
        throughput = problem.min_throughput  # met, but for the last bits of a sum
    return Plan(
        assignment=tuple(int(kind) for kind in assignment),
        stages=stages,
        throughput=throughput,
        cost=problem.cost(price / throughput),
        price_per_hour=price,
    )


def _stages(problem: Problem, assignment: Sequence[int] | Ints, slowest_s: float) -> list[Stage]:
    tables, found = problem.tables, []
    bounds = [place for place in range(1, len(assignment)) if assignment[place] != assignment[place - 1]]
    for first, end in zip([0, *bounds], [*bounds, len(assignment)], strict=True):
        kind = int(assignment[first])
        compute = sum(problem.layers[layer].compute_s[kind] for layer in range(first, end))
        transfer = problem.layers[end - 1].transfer_s[kind]
        alpha, beta = float(tables.alpha[kind]), float(tables.beta[kind])
        units = compiled.units_for(compute, transfer, alpha, beta, float(tables.cap[kind]), slowest_s)
        assert units > 0, "the plan has a stage that cannot be as fast"
        found.append(
            Stage(
                type=problem.names[kind],
                first=first,
                last=end - 1,
                units=int(units),
                compute_s=compute,
                transfer_s=transfer,
                seconds=float(compiled.stage_s(compute, transfer, alpha, beta, units)),
                price_per_hour=float(tables.price[kind] * units),
            )
        )
    return found
