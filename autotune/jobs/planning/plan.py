"""The best plan for a workload on a cluster, on predictions alone. Nothing here needs MPI."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autotune.jobs.planning.judge import least_value, make_judge
from autotune.jobs.planning.placements import Searched, explained, searched_placements
from autotune.jobs.predict import Predictor, forecast_of
from autotune.jobs.question import Aim, Question
from autotune.results.store.forecast import Forecast, PlacedGroup
from autotune.search.methods import METHODS, PredictedSearch
from autotune.search.predicted_costs import rank_costs
from autotune.search.rank_sets import RankSet, as_choices, worthwhile_sets
from autotune.space.space import Space
from autotune.workloads.errors import InfeasiblePlanError, SpecError
from autotune.workloads.plan import Plan, default_plan
from autotune.workloads.plan.choices import load
from autotune.workloads.split import even


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """The best plan found on predictions alone."""

    forecast: Forecast
    default: Forecast
    objective: str
    method: str
    num_predicted: int
    num_placements: int = 0
    """Simulations of plans with groups of ops."""
    groups: tuple[PlacedGroup, ...] = ()
    """Of a plan that places groups of ops, with `--explain`."""


def plan(question: Question, predictor: Predictor, aim: Aim) -> Planned:
    """The best plan, and torch DDP's default beside it."""
    simulator, judge = predictor.simulator, make_judge(predictor.simulator, aim)
    judged: list[tuple[float, Plan]] = []
    sets: list[RankSet] = []
    placed: Searched | None = None
    for runs_only in (False,) if aim.any_plan else (True, False):
        space = predictor.space(question.transports, allow_lossy=question.allow_lossy, runs_only=runs_only)
        if not judged:
            sets = worthwhile_sets(simulator, space, judge, least_value(simulator, aim))
        space = replace(space, rank_sets=as_choices(sets))
        judged += _search(aim, space, predictor, judge, sets, seed=question.seed)
        if placed is None:
            placed = searched_placements(question, predictor, aim, min(judged, key=lambda entry: entry[0])[0])
            judged += placed.judged
        found, best = min(judged, key=lambda entry: entry[0])
        if found < float("inf") or predictor.cuts is None:
            break
    if found == float("inf"):
        wanted = f" with at least {aim.min_throughput:g} samples/s" if aim.min_throughput else ""
        raise InfeasiblePlanError(
            f"none of {len(judged)} plans fits {predictor.cluster.name!r}{wanted}: use more devices, or ask for less"
        )
    even_split = default_plan(even(predictor.total, predictor.bounds), transport=space.transports[0])
    assert placed is not None
    forecast = _with_refusal(forecast_of(placed.predictor, best))
    return Planned(
        forecast=replace(forecast, doubts=(*forecast.doubts, *([placed.note] if placed.note else []))),
        default=simulator.forecast(even_split),
        objective=aim.objective,
        method=aim.method,
        num_predicted=len(judged),
        num_placements=placed.num_simulations,
        groups=explained(placed.predictor, best) if aim.explain else (),
    )


def _with_refusal(forecast: Forecast) -> Forecast:
    """With a note where no job runs the plan yet."""
    try:
        forecast.plan.check_runnable()
    except SpecError as refused:
        return replace(forecast, doubts=(*forecast.doubts, f"no job runs this plan: {refused}"))
    return forecast


def _search(  # noqa: PLR0913 - what a search is made of
    aim: Aim,
    space: Space,
    predictor: Predictor,
    judge: Callable[[Plan], float],
    sets: Sequence[RankSet],
    *,
    seed: int,
) -> list[tuple[float, Plan]]:
    costs = rank_costs(predictor.simulator)
    speeds = [1 / (cost.fixed_s / max(predictor.total, 1) + cost.per_sample_s) for cost in costs]
    asked = PredictedSearch(
        space=dataclasses.replace(space, reference=tuple(speed / max(speeds) for speed in speeds)),
        start=predictor.balanced_split(),
        others=tuple(one.plan.batch.samples for one in sets),
        judge=judge,
        evaluations=aim.evaluations,
        seed=seed,
    )
    judged: list[tuple[float, Plan]] = load(METHODS[aim.method].predicted_by)(asked)
    return judged
