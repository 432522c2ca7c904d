"""Repetends: the greedy ones keep the rules, periods are proven, and a finite schedule of many micro-batches agrees."""

from __future__ import annotations

import dataclasses
import math

import pytest

from autotune.schedule.bounds import period_bound_s
from autotune.schedule.greedy import greedy_repetend
from autotune.schedule.grid import FINE, make_grid
from autotune.schedule.memory import fitting_order
from autotune.schedule.modulo import Repetend, find_repetend, is_repetend
from autotune.schedule.period import shortest_period
from autotune.schedule.solver import Outcome
from tests.autotune.schedule.instances import random_chain, random_dag
from tests.autotune.schedule.shapes import SHAPES


def period_of(graph, steps=FINE):
    return shortest_period(make_grid(graph, steps), fitting_order(graph), None, lambda: 5.0, lambda period: None)


@pytest.mark.parametrize("devices", [4, 32])
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_repetends_keep_every_rule(shape, devices):
    graph = SHAPES[shape](devices)
    grid = make_grid(graph)
    found = greedy_repetend(grid, int(max(graph.work_s)) - 1, 10_000)
    assert found is not None
    assert is_repetend(grid, found)
    if shape in "VX":
        assert found.period == max(graph.work_s)


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("memory", [1, 2, 4])
@pytest.mark.parametrize("shape", ["M", "NN"])
def test_below_the_bound_that_needs_no_search_there_is_nothing(shape, memory, devices):
    graph = SHAPES[shape](devices)
    graph = dataclasses.replace(graph, memory=(float(memory),) * devices)
    below = math.ceil(period_bound_s(graph) * 4 - 1e-6) - 1  # in quarters
    attempt = find_repetend(make_grid(graph).finer(4), below, 20.0)
    assert attempt.outcome is Outcome.INFEASIBLE


@pytest.mark.parametrize(("shape", "least"), [("V", 4), ("X", 8), ("M", 8), ("NN", 10)])
def test_on_many_devices_the_greedy_repetend_is_proven_by_the_bound(shape, least):
    graph = SHAPES[shape](32)
    assert period_bound_s(graph) == pytest.approx(least)
    assert greedy_repetend(make_grid(graph), least - 1, 10_000).period == least


def test_what_breaks_a_rule_is_no_repetend():
    graph = SHAPES["V"](2)  # f0 f1 b1 b0
    grid = make_grid(graph)
    assert is_repetend(grid, Repetend(period=8, starts=(0, 1, 2, 5)))
    assert not is_repetend(grid, Repetend(period=8, starts=(0, 1, 1, 5)))  # backward before its forward has ended
    assert not is_repetend(
        grid, Repetend(period=4, starts=(0, 1, 2, 7))
    )  # backward over the forward of the one after next
    assert not is_repetend(grid, Repetend(period=4, starts=(0, 1, 2, 13)))  # four in flight where two fit


@pytest.mark.parametrize("seed", range(6))
def test_a_repetend_of_the_model_keeps_every_rule_and_none_is_shorter(seed):
    graph = random_chain(seed, devices=(2, 3), whole=True) if seed % 2 else random_dag(seed)
    found = period_of(graph)
    assert is_repetend(found.grid, found.repetend)
    assert found.proven
    shorter = find_repetend(found.grid, found.repetend.period - 1, 5.0)
    assert shorter.outcome is Outcome.INFEASIBLE


def test_one_device_has_its_work_as_period():
    assert period_of(SHAPES["V"](1)).period_s == 4.0


def test_a_coarse_grid_is_no_better_than_the_truth():
    graph = random_chain(11, devices=(3, 3))
    fine, coarse = period_of(graph), period_of(graph, steps=256)
    assert coarse.bound_s <= fine.period_s * (1 + 1e-9)
    assert fine.bound_s <= coarse.period_s * (1 + 1e-9)
    assert math.isclose(fine.period_s, coarse.period_s, rel_tol=0.1)
