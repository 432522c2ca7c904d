"""Answers of provisioning: a method's plan beside its bound, the error where there is none, and the JSON of `autotune provision`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.provision.assignment import Plan, best_rate, plan_at
from autotune.provision.exact import fastest, load_compiled
from autotune.provision.judge import Asked, Chosen
from autotune.provision.methods import METHODS
from autotune.provision.problem import MAX_UNITS, Problem
from autotune.workloads.errors import InfeasiblePlanError
from autotune.workloads.plan.choices import load


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a method has found."""

    method: str
    plan: Plan | None
    """None: nothing that meets the floor within the limits."""
    proven: bool
    lower_bound: float | None
    """Of the cost of any plan; None: the method has none."""
    evaluations: int
    seconds: float


def answer(asked: Asked, method: str) -> Answer:
    """Run a method."""
    run = load(METHODS[method].run)
    load_compiled(limited=asked.problem.has_limits)
    started = time.perf_counter()
    chosen: Chosen = run(asked)
    return Answer(
        method=method,
        plan=None if chosen.assignment is None else _plan(asked.problem, chosen.assignment),
        proven=chosen.proven,
        lower_bound=None if chosen.bound in (None, math.inf) else asked.problem.cost(chosen.bound or 0.0),
        evaluations=chosen.evaluations,
        seconds=time.perf_counter() - started,
    )


def _plan(problem: Problem, assignment: Any) -> Plan:
    _, slowest = best_rate(problem, assignment)
    return plan_at(problem, assignment, slowest)


def infeasible(asked: Asked, found: Answer) -> InfeasiblePlanError:
    """Nothing meets the floor: by how much, and what would help."""
    problem = asked.problem
    wanted = f"min_throughput is {problem.min_throughput:g} examples/s"
    best = fastest(problem, time_s=min(asked.time_s, 30.0))
    if best.assignment is None:
        unusable = ", ".join(one.name for one in problem.types if one.limit == 0) or "none"
        return InfeasiblePlanError(
            f"no assignment can run at all: types with limit 0: {unusable}; raise limits, or give layers times on other types"
        )
    reached = 1 / best.slowest_s
    if problem.min_throughput <= reached:
        return InfeasiblePlanError(
            f"--method {found.method} has found no plan: {wanted}, which others reach: use --method exact"
        )
    limits = ", ".join(f"{one.name} {one.limit}" for one in problem.types if one.limit is not None)
    return InfeasiblePlanError(
        f"no assignment meets the floor: {wanted}, but {'at most ' if best.proven else 'the fastest plan found has '}"
        f"{reached:.6g} is possible ({100 * (1 - reached / problem.min_throughput):.3g} % less)"
        f" with limits on units: {limits or f'none, and {MAX_UNITS:,} units of a stage'}: lower min_throughput, or raise limits"
    )


def plan_data(problem: Problem, plan: Plan) -> dict[str, Any]:
    """The plan as the contract says."""
    return {
        "assignment": [problem.names[kind] for kind in plan.assignment],
        "units": {name: plan.units_of(name) for name in problem.names},
        "stages": [
            {
                "type": stage.type,
                "layers": [layer.name for layer in problem.layers[stage.first : stage.last + 1]],
                "units": stage.units,
                "compute_s": stage.compute_s,
                "transfer_s": stage.transfer_s,
                "seconds": stage.seconds,
                "price_per_hour": stage.price_per_hour,
            }
            for stage in plan.stages
        ],
        "throughput": plan.throughput,
        "cost": plan.cost,
    }


def answer_data(problem: Problem, found: Answer) -> dict[str, Any]:
    """The document that `autotune provision --json` writes."""
    assert found.plan is not None
    data = plan_data(problem, found.plan) | {
        "proven": found.proven,
        "method": found.method,
        "seconds": found.seconds,
        "lower_bound": found.lower_bound,
        "evaluations": found.evaluations,
        "price_per_hour": found.plan.price_per_hour,
        "cost_per_million": found.plan.cost * 1e6 / problem.examples,
        "min_throughput": problem.min_throughput,
        "examples": problem.examples,
        "types": [_type_data(one) for one in problem.types],
    }
    return data | ({"source": problem.source} if problem.source else {})


def _type_data(one: Any) -> dict[str, Any]:
    names = ("name", "price_per_hour", "limit", "alpha", "alpha_error", "beta", "beta_error")
    return {name: getattr(one, name) for name in names}


def comparison_data(problem: Problem, answers: list[Answer]) -> list[dict[str, Any]]:
    """A row per method; the gap is to the cheapest proven cost, else to the cheapest."""
    costs = [one.plan.cost for one in answers if one.plan is not None]
    proven = [one.plan.cost for one in answers if one.plan is not None and one.proven]
    least = min(proven or costs, default=math.nan)
    return [_row(problem, one, least) for one in answers]


def _row(problem: Problem, one: Answer, least: float) -> dict[str, Any]:
    plan = one.plan
    row = {"method": one.method, "proven": one.proven, "seconds": one.seconds, "evaluations": one.evaluations}
    if plan is None:
        return row | {
            "state": "INFEASIBLE",
            "cost": None,
            "gap": None,
            "throughput": None,
            "units": None,
            "stages": None,
        }
    gap = plan.cost / least - 1 if least > 0 else float(np.sign(plan.cost))
    return row | {
        "state": "COMPLETE",
        "cost": plan.cost,
        "gap": max(gap, 0.0),
        "throughput": plan.throughput,
        "units": {name: plan.units_of(name) for name in problem.names},
        "stages": len(plan.stages),
    }
