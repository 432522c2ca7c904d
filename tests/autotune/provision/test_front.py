"""The front: no plan of it is cheaper and faster than another, and nothing is left out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from autotune.provision.assignment import best_rate
from autotune.provision.exact import cheapest
from autotune.provision.front import fastest_within, front
from tests.autotune.provision.instances import assignments, random_problem


def least_cost(problem, longest_s):
    return min(
        problem.cost(best_rate(problem, np.array(kinds), longest_s=longest_s)[0]) for kinds in assignments(problem)
    )


@pytest.mark.parametrize("seed", range(4))
def test_all_plans_of_the_front_are_there(seed):
    problem = random_problem(seed, types=2, layers=4, limited=True)
    found = front(problem, step=0)
    costs, rates = ([getattr(one.plan, key) for one in found.points] for key in ("cost", "throughput"))
    assert costs == sorted(costs)
    assert rates == sorted(rates)
    for place, point in enumerate(found.points):
        assert point.proven
        assert point.plan.cost == pytest.approx(least_cost(problem, 1 / point.plan.throughput), rel=1e-9)
        if place:  # just above the throughput of the plan before, nothing is cheaper
            assert point.plan.cost == pytest.approx(least_cost(problem, 1 / rates[place - 1] * (1 - 1e-9)), rel=1e-9)
    if found.points and found.end.startswith("no plan"):
        assert least_cost(problem, 1 / rates[-1] * (1 - 1e-9)) == math.inf


def test_steps_leave_plans_out():
    problem = random_problem(1, types=2, layers=4)
    everything, steps = front(problem, step=0), front(problem, step=0.2)
    assert 1 < len(steps.points) < len(everything.points)
    rates = [one.plan.throughput for one in steps.points]
    assert all(second >= 1.2 * first * (1 - 1e-9) for first, second in itertools.pairwise(rates))


def test_a_budget_buys_throughput_and_too_little_buys_nothing():
    problem = random_problem(1, types=2, layers=4)
    least = problem.cost(cheapest(problem).rate)
    found = fastest_within(problem, 1.5 * least)
    assert found.proven
    assert found.plan.cost <= 1.5 * least * (1 + 1e-9)
    assert found.plan.throughput >= fastest_within(problem, 1.1 * least).plan.throughput
    assert fastest_within(problem, 0.99 * least) is None
    assert all(one.plan.cost <= 1.5 * least for one in front(problem, step=0.05, budget=1.5 * least).points)
