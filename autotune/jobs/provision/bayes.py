"""Bayesian optimisation as a method of provisioning: Optuna proposes, the model of provisioning judges."""

from __future__ import annotations

import numpy as np

from autotune.provision.judge import Asked, Chosen, Judge
from autotune.search.optuna_choices import TRIALS, choose


def bayes(asked: Asked) -> Chosen:
    """As `--method bayes`."""
    judge = Judge(asked.problem)
    choices = [len(asked.problem.types)] * asked.problem.num_layers
    choose(lambda kinds: judge(np.array(kinds, np.int64)), choices, trials=TRIALS, seed=asked.seed, time_s=asked.time_s)
    return judge.answer()
