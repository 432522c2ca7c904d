"""The proven planner equals brute force, with and without limits, and brute force equals the model written down plainly."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from autotune.provision.assignment import best_rate, plan_at
from autotune.provision.exact import cheapest, fastest
from autotune.provision.exact_method import brute_force
from autotune.provision.judge import Asked
from autotune.provision.problem import Layer, Problem, ResourceType
from tests.autotune.provision.instances import assignments, random_problem, reference_cost

SIZES = [(1, 6), (2, 5), (2, 8), (3, 4), (3, 5), (4, 4), (5, 3)]


def brute(problem):
    least = math.inf
    for kinds in assignments(problem):
        least = min(least, best_rate(problem, np.array(kinds))[0])
    return least


def same(first, second):
    return first == second or abs(first - second) <= 1e-9 * abs(second)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize(("types", "layers"), [(2, 4), (3, 3)])
def test_brute_force_is_the_model_in_plain_python(types, layers, limited):
    for seed in range(4):
        problem = random_problem(seed, types=types, layers=layers, limited=limited, floor=seed % 2 == 0)
        for kinds in assignments(problem):
            rate, slowest = best_rate(problem, np.array(kinds))
            expected = reference_cost(problem, kinds)
            assert same(problem.cost(rate), expected), (seed, kinds)
            if rate < math.inf:
                assert same(plan_at(problem, kinds, slowest).cost, expected)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize(("types", "layers"), SIZES)
def test_the_exact_planner_equals_brute_force(types, layers, limited):
    for seed in range(15):
        forbid = 0.2 if seed % 3 == 0 else 0.0
        problem = random_problem(seed, types=types, layers=layers, limited=limited, floor=seed % 4 != 0, forbid=forbid)
        found = cheapest(problem)
        assert found.proven
        assert same(found.rate, brute(problem)), (seed, found)


@pytest.mark.slow
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize(("types", "layers"), [(2, 15), (3, 10), (4, 7), (5, 6), (6, 6), (9, 5)])
def test_the_exact_planner_equals_brute_force_on_larger_problems(types, layers, limited):
    for seed in range(100, 120):
        problem = random_problem(seed, types=types, layers=layers, limited=limited, floor=seed % 4 != 0)
        found = cheapest(problem)
        assert found.proven
        assert same(found.rate, brute(problem)), (seed, found)


def test_perfect_scaling_without_limits_ends_with_a_proof():
    for seed in range(6):
        problem = random_problem(seed, types=3, layers=6)
        types = tuple(dataclasses.replace(one, alpha=1.0, beta=1.0) for one in problem.types)
        found = cheapest(dataclasses.replace(problem, types=types))
        assert found.proven
        assert found.rate >= found.bound * (1 - 1e-9)


@pytest.mark.parametrize("limited", [False, True])
def test_the_fastest_plan_within_a_budget_equals_brute_force(limited):
    for seed in range(8):
        problem = random_problem(seed, types=3, layers=4, limited=limited, floor=False)
        least = cheapest(problem).rate
        for factor in (1.0001, 1.2, 3.0):
            found = fastest(problem, most_rate=least * factor)
            expected = min(
                best_rate(problem, np.array(kinds), longest_s=problem.longest_stage_s, most_rate=least * factor)[1]
                for kinds in assignments(problem)
            )
            assert found.proven
            assert abs(found.slowest_s - expected) <= 1e-8 * expected, (seed, factor)


def one_stage(compute_s, floor, *, alpha=1.0, limit=None, layers=1):
    rows = tuple(Layer(name=f"l{at}", compute_s=(compute_s,), transfer_s=(0.0,)) for at in range(layers))
    kind = ResourceType(name="cpu", price_per_hour=3.6, limit=limit, alpha=alpha, beta=1.0)
    return Problem(types=(kind,), layers=rows, examples=1000, min_throughput=floor)


@pytest.mark.parametrize(
    ("compute_s", "layers", "floor", "units"),
    [
        (0.7, 1, 10, 7),  # 0.7/7 is 0.09999999999999999 or 0.1
        (0.1, 3, 10, 3),  # three times 0.1 is 0.30000000000000004
        (0.1, 7, 10, 7),
        (0.3, 1, 10, 3),
        (1.1, 1, 10, 11),
        (1e-5, 9, 1e5, 9),
    ],
)
def test_units_at_a_tie_are_not_one_too_many(compute_s, layers, floor, units):
    problem = one_stage(compute_s, floor, layers=layers)
    found = cheapest(problem)
    plan = plan_at(problem, found.assignment, found.slowest_s)
    assert plan.stages[0].units == units
    assert plan.throughput >= floor


def test_a_limit_that_just_suffices_is_met_and_one_below_is_not():
    assert cheapest(one_stage(0.7, 10, limit=7)).assignment is not None
    assert cheapest(one_stage(0.7, 10, limit=6)).assignment is None
    assert fastest(one_stage(0.7, 10, limit=6)).slowest_s == pytest.approx(0.7 / 6)


def test_neighbours_on_one_type_are_one_stage():
    """Two stages of one type would each have its own serial part: cheaper, but not a plan of this model."""
    problem = one_stage(1.0, 0, alpha=0.5, layers=4)
    found = cheapest(problem)
    assert found.rate == pytest.approx(3.6 * 4.0)


def test_time_that_runs_out_leaves_a_bound_and_no_proof():
    problem = random_problem(3, types=8, layers=64, limited=True)
    found = cheapest(problem, time_s=0.0)
    assert not found.proven
    assert found.bound <= cheapest(problem).rate * (1 + 1e-9)


def test_brute_force_refuses_what_would_take_for_ever():
    with pytest.raises(Exception, match=r"8\^64 assignments"):
        brute_force(Asked(problem=random_problem(0, types=8, layers=64)))
