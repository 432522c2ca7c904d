"""Optuna on a prediction: the control for our own search, and what a user would write."""

from __future__ import annotations

import math
from collections.abc import Callable

import optuna

from autotune.search.methods import PredictedSearch
from autotune.search.optuna_study import distributions, make_sampler
from autotune.space.space import Space
from autotune.workloads.plan import Plan

_MOST_EVALUATIONS = 500
"""TPE slows down with the number of trials."""


def optuna_search(
    space: Space, judge: Callable[[Plan], float], *, sampler: str, evaluations: int, seed: int
) -> list[tuple[float, Plan]]:
    """All plans that were judged, the best first."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="minimize", sampler=make_sampler(sampler, seed))
    judged = []
    for _ in range(evaluations):
        trial = study.ask(distributions(space))
        plan = space.plan(trial.params)
        value = judge(plan)
        judged.append((value, plan))
        if math.isfinite(value):
            study.tell(trial, value)
        else:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    return sorted(judged, key=lambda entry: entry[0])


def search_tpe(asked: PredictedSearch) -> list[tuple[float, Plan]]:
    """As `--method tpe`."""
    return _search(asked, "tpe")


def search_random(asked: PredictedSearch) -> list[tuple[float, Plan]]:
    """As `--method random`."""
    return _search(asked, "random")


def _search(asked: PredictedSearch, sampler: str) -> list[tuple[float, Plan]]:
    evaluations = min(asked.evaluations, _MOST_EVALUATIONS)
    return optuna_search(asked.space, asked.judge, sampler=sampler, evaluations=evaluations, seed=asked.seed)
