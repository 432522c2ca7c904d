"""Placement searches beside the proven optimum, data parallelism and each other."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest

from autotune.placement.groups.exact import exact
from autotune.placement.groups.methods import PLACEMENT_METHODS
from autotune.placement.groups.portfolio import Search, find_placement
from autotune.workloads.errors import SpecError
from tests.autotune.placement.groups.cases import BATCH, random_problem, random_simulator

MANY = 10**6
CASES = [pytest.param(seed, marks=pytest.mark.slow if seed >= 10 else ()) for seed in range(60)]


@cache
def optimum(seed: int):
    problem = random_problem(seed, MANY)
    PLACEMENT_METHODS["exact"].search(problem, 0)
    return problem.judged[problem.best], problem.num_simulations


@pytest.mark.parametrize("seed", range(6))
def test_branch_and_bound_is_as_good_as_all_assignments(seed):
    problem = random_problem(seed, MANY, num_groups=3, num_sets=5)
    every = min(problem.judge(one) for one in product(range(problem.num_sets), repeat=problem.num_groups))
    bounded = random_problem(seed, MANY, num_groups=3, num_sets=5)
    PLACEMENT_METHODS["exact"].search(bounded, 0)
    assert bounded.judged[bounded.best] == every


@pytest.mark.parametrize("seed", CASES)
def test_two_hundred_simulations_come_within_five_percent_of_the_optimum(seed):
    (over, best), _ = optimum(seed)
    problem = random_problem(seed, 200)
    PLACEMENT_METHODS["portfolio"].search(problem, seed)
    found = problem.judged[problem.best]
    assert problem.num_simulations <= 200
    if over == 0:
        assert found[0] == 0
        assert found[1] <= 1.05 * best


@pytest.mark.parametrize("method", PLACEMENT_METHODS)
def test_methods_repeat_themselves_keep_the_budget_and_show_progress(method):
    values, shown = [], []
    for _ in range(2):
        problem = random_problem(3, 30, num_groups=3, num_sets=3)
        problem.progress = lambda number, value: shown.append((number, value))
        PLACEMENT_METHODS[method].search(problem, 7)
        values.append((problem.best, problem.judged[problem.best], problem.num_simulations))
    assert values[0] == values[1]
    assert values[0][2] <= 30
    assert [number for number, _ in shown[: values[0][2]]] == list(range(1, values[0][2] + 1))
    least = [value for _, value in shown[: values[0][2]]]
    assert least == sorted(least, reverse=True)


def test_the_exact_search_refuses_what_it_cannot_finish():
    with pytest.raises(SpecError, match="fewer groups"):
        exact(random_problem(1, 10, num_groups=9, num_sets=15), None)


@pytest.mark.parametrize("seed", range(8))
def test_a_found_placement_is_a_plan_that_is_never_worse_than_one_group_everywhere(seed):
    simulator = random_simulator(seed)
    found = find_placement(simulator, Search(simulations=60))
    assert found.num_simulations <= 60
    found.plan.validate(num_ranks=len(simulator.costs.cluster.devices), global_batch=BATCH)
    found.plan.check_runnable()
    outcome = simulator.outcome(found.plan)
    assert (found.over == 0) == simulator.fits(found.plan, outcome)
    assert found.value == outcome.step_s
    everywhere = random_problem(seed, 1, num_groups=1)
    everywhere = everywhere.judge((0,)) if everywhere.choices.micro_batches == 1 else (float("inf"), float("inf"))
    assert (found.over, found.value) <= everywhere
    if found.over == 0:
        limit = simulator.forecast(found.plan).limit
        assert limit is not None
        assert limit.step_s <= found.value
