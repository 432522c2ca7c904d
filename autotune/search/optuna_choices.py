"""Optuna's TPE over one choice per place: provisioning as Bayesian optimisation, the control for methods that know the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution

from autotune.search.optuna_study import make_sampler

TRIALS = 300
"""TPE slows down with the number of trials."""


def choose(
    judge: Callable[[Sequence[int]], float], choices: Sequence[int], *, trials: int, seed: int, time_s: float
) -> None:
    """Ask for `trials` points, each a choice below `choices[i]` at place i, and tell what the judge says of them."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="minimize", sampler=make_sampler("tpe", seed))
    axes: dict[str, BaseDistribution] = {
        f"x{place}": CategoricalDistribution(tuple(range(count))) for place, count in enumerate(choices)
    }
    until = time.perf_counter() + time_s
    for _ in range(trials):
        trial = study.ask(axes)
        study.tell(trial, judge([int(trial.params[name]) for name in axes]))
        if time.perf_counter() > until:
            return
