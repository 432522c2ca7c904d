"""Every method: its plan is one of the model's, never below the proven optimum, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.provision.answer import answer, comparison_data
from autotune.provision.baselines import accelerator_types, cpu_types
from autotune.provision.judge import Asked, Judge
from autotune.provision.methods import METHODS
from autotune.provision.problem import Layer, Problem, ResourceType
from tests.autotune.provision.instances import random_problem, reference_cost

TRYING = ("rl", "genetic", "bayes")


def names(*types):
    kinds = tuple(ResourceType(name=name, price_per_hour=price) for name, price in types)
    layer = Layer(name="l", compute_s=(1.0,) * len(kinds), transfer_s=(0.0,) * len(kinds))
    return Problem(types=kinds, layers=(layer,), examples=1)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_plan_is_one_of_the_model_and_not_below_the_optimum(method, limited):
    problem = random_problem(5, types=3, layers=5, limited=limited)
    asked = Asked(problem=problem, time_s=20)
    found, least = answer(asked, method), answer(asked, "exact")
    if found.plan is not None:
        assert found.plan.cost == pytest.approx(reference_cost(problem, found.plan.assignment), rel=1e-9)
        assert found.plan.cost >= least.plan.cost * (1 - 1e-9)
        assert found.plan.throughput >= problem.min_throughput
    assert found.proven == (method in ("exact", "brute-force"))


@pytest.mark.parametrize("method", TRYING)
def test_the_same_seed_gives_the_same_plan(method):
    problem = random_problem(7, types=3, layers=6)
    first, second = (answer(Asked(problem=problem, seed=3), method) for _ in range(2))
    assert first.plan == second.plan
    assert first.evaluations == second.evaluations


@pytest.mark.parametrize("method", TRYING)
def test_small_problems_are_solved(method):
    for seed in range(3):
        problem = random_problem(seed, types=2, layers=4)
        found, least = (answer(Asked(problem=problem), name) for name in (method, "exact"))
        assert found.plan.cost <= 1.05 * least.plan.cost


def test_types_are_distinguished_by_name_else_by_price():
    named = names(("gpu", 1.0), ("CPU-large", 9.0), ("cpu", 2.0))
    assert (cpu_types(named), accelerator_types(named)) == ([1, 2], [0])
    priced = names(("a", 3.0), ("b", 1.0), ("c", 2.0))
    assert (cpu_types(priced), accelerator_types(priced)) == ([1], [0, 2])
    assert accelerator_types(names(("cpu", 1.0))) == [0]


def test_an_assignment_beyond_the_limits_costs_more_the_further_it_is():
    problem = random_problem(1, types=2, layers=4)
    limited = [
        Problem(
            types=tuple(
                ResourceType(name=one.name, price_per_hour=1.0, alpha=0.9, beta=0.9, limit=limit)
                for one in problem.types
            ),
            layers=problem.layers,
            examples=1,
            min_throughput=2.6 / sum(layer.compute_s[0] for layer in problem.layers),
        )
        for limit in (1000, 2, 1)
    ]
    costs = [Judge(one)(np.zeros(4, np.int64)) for one in limited]
    assert costs[0] < costs[1] < costs[2]


def test_gaps_are_to_the_proven_optimum():
    problem = random_problem(2, types=3, layers=4)
    rows = comparison_data(problem, [answer(Asked(problem=problem), name) for name in ("exact", "greedy", "cpu-only")])
    assert rows[0]["gap"] == 0
    for row in rows:
        if row["cost"] is not None:
            assert row["gap"] == pytest.approx(row["cost"] / rows[0]["cost"] - 1)
