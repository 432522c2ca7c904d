"""Search methods by name: for `autotune sweep --sampler`, which measures, and `autotune plan --method`, which predicts.

Nothing of Optuna or torch is loaded here: a method is named by where it is. A new one is a module and one `register` call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.space.space import Space
from autotune.workloads.plan import Plan
from autotune.workloads.plan.choices import Registry

Judge = Callable[[Plan], float]
"""Smaller is better; infinite where a plan cannot run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedSearch:
    """A search on predictions alone."""

    space: Space
    start: tuple[int, ...]
    """The split that the devices' costs call for."""
    others: tuple[tuple[int, ...], ...] = ()
    """Splits that leave ranks out, the most promising first."""
    judge: Judge
    evaluations: int
    """The most that are judged."""
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchMethod:
    """How plans are proposed."""

    name: str
    text: str
    """One line for documentation."""
    measured_by: str = ""
    """"module:function" of (Problem, SearchOptions, storage path or None, Simulator or None), which answers a Tuner."""
    predicted_by: str = ""
    """"module:function" of a PredictedSearch, which answers all (value, plan) that were judged, the best first."""


METHODS: Registry[SearchMethod] = Registry("search method")
METHODS.register(
    SearchMethod(
        name="descent",
        text="every choice of the discrete knobs, then samples moved between ranks while it pays",
        predicted_by="autotune.search.local_search:search",
    )
)
METHODS.register(
    SearchMethod(
        name="tpe",
        text="Optuna's TPE; in a sweep among the candidates of predictions corrected by measurements",
        measured_by="autotune.search.guided:make_guided",
        predicted_by="autotune.search.optuna_predicted:search_tpe",
    )
)
METHODS.register(
    SearchMethod(
        name="random",
        text="random points: the control, same budget, no guidance",
        measured_by="autotune.search.guided:make_guided",
        predicted_by="autotune.search.optuna_predicted:search_random",
    )
)


def measuring() -> tuple[str, ...]:
    """The methods of a sweep."""
    return METHODS.names(lambda method: bool(method.measured_by))


def predicting() -> tuple[str, ...]:
    """The methods of a search on predictions."""
    return METHODS.names(lambda method: bool(method.predicted_by))
