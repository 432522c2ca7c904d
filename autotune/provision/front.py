"""The front of throughput and cost: plans of which none is both cheaper and faster than another.

From the cheapest plan upwards: the next is the cheapest of all plans that are faster by a step. With step 0 these are all plans of the front.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.provision.assignment import Plan, plan_at
from autotune.provision.compiled import SAME
from autotune.provision.exact import GAP, cheapest, fastest
from autotune.provision.problem import Problem

MOST_PLANS = 200
COST_RANGE = 10.0
"""Without a budget the front ends where plans cost this many times the cheapest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A plan of the front."""

    plan: Plan
    proven: bool
    """Nothing as fast is cheaper."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Front:
    """Plans from the cheapest to the fastest."""

    points: tuple[Point, ...]
    step: float
    end: str
    """Why it ends."""


def front(problem: Problem, *, step: float, budget: float | None = None, time_s: float = 60.0) -> Front:
    """Every plan of the front, or one per step of throughput, from the floor on."""
    points: list[Point] = []
    longest_s, most = problem.slowest_s, budget
    while len(points) < MOST_PLANS:
        found = cheapest(problem, longest_s=longest_s, time_s=time_s)
        if found.assignment is None:
            return Front(points=tuple(points), step=step, end="no plan within the limits is faster")
        plan = plan_at(problem, found.assignment, found.slowest_s)
        most = most if most is not None else COST_RANGE * plan.cost
        if plan.cost > most * (1 + GAP):
            end = (
                "faster plans exceed the budget"
                if budget is not None
                else f"faster plans cost over {COST_RANGE:g}x the least"
            )
            return Front(points=tuple(points), step=step, end=end)
        points.append(Point(plan=plan, proven=found.proven))
        longest_s = found.slowest_s / (1 + max(step, 4 * SAME))
    return Front(points=tuple(points), step=step, end=f"{MOST_PLANS} plans")


def fastest_within(problem: Problem, budget: float, *, time_s: float = 60.0) -> Point | None:
    """The plan of highest throughput that costs at most the budget, for all examples; of those the cheapest."""
    found = fastest(problem, most_rate=budget * 3600 / problem.examples, time_s=time_s)
    if found.assignment is None or found.slowest_s > problem.slowest_s * (1 + SAME):
        return None
    least = cheapest(problem, longest_s=found.slowest_s, time_s=time_s)
    if least.assignment is None:
        return Point(plan=plan_at(problem, found.assignment, found.slowest_s), proven=False)
    return Point(plan=plan_at(problem, least.assignment, least.slowest_s), proven=found.proven)
