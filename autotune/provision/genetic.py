"""A genetic search over assignments: tournaments choose parents, runs of layers are exchanged, single layers and runs change their type."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from autotune.provision.judge import Asked, Chosen, Judge
from autotune.provision.problem import Ints

_POPULATION, _GENERATIONS = 80, 150
_ELITE = 4
"""Of each generation: they stay."""
_MUTATED = 0.6
"""Of the children."""
_STALE = 40
"""Generations without a better plan, after which it ends."""


def genetic(asked: Asked) -> Chosen:
    """As `--method genetic`."""
    rng, judge = np.random.default_rng(asked.seed), Judge(asked.problem)
    layers, types = asked.problem.num_layers, len(asked.problem.types)
    population = [_start(rng, layers, types) for _ in range(_POPULATION)]
    population[:types] = [np.full(layers, kind, np.int64) for kind in range(min(types, _POPULATION))]
    until, stale, least = time.perf_counter() + asked.time_s, 0, np.inf
    for _ in range(_GENERATIONS):
        values = np.array([judge(one) for one in population])
        stale = 0 if values.min() < least else stale + 1
        least = min(least, float(values.min()))
        if stale > _STALE or time.perf_counter() > until:
            break
        order = np.argsort(values, kind="stable")
        children = [_child(rng, population, values, types) for _ in range(_POPULATION - _ELITE)]
        population = [population[place] for place in order[:_ELITE]] + children
    return judge.answer()


def _start(rng: Any, layers: int, types: int) -> Ints:
    """Any type for each layer, or few long runs."""
    if rng.random() < 0.5:
        drawn: Ints = rng.integers(types, size=layers)
        return drawn
    cuts = np.sort(rng.integers(layers, size=rng.integers(1, 5)))
    runs: Ints = rng.integers(types, size=len(cuts) + 1)[np.searchsorted(cuts, np.arange(layers), side="right")]
    return runs


def _child(rng: Any, population: list[Ints], values: Any, types: int) -> Ints:
    first, second = (
        population[min(rng.integers(len(population), size=3), key=lambda at: values[at])] for _ in range(2)
    )
    begin, end = np.sort(rng.integers(len(first) + 1, size=2))
    child: Ints = first.copy()
    child[begin:end] = second[begin:end]
    if rng.random() < _MUTATED:
        at = rng.integers(len(child))
        length = 1 if rng.random() < 0.5 else rng.integers(1, len(child) + 1)
        child[at : at + length] = rng.integers(types)
    return child
