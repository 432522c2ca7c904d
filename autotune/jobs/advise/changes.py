"""Is a change of the cluster worth it? The best plan before and after, on predictions alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autotune.jobs.advise.candidates import Edits
from autotune.jobs.evaluate import as_best_plan
from autotune.jobs.planning.plan import plan
from autotune.jobs.predict import PredictorSource
from autotune.jobs.question import Aim, Question
from autotune.profilers.breakdown import largest_costs
from autotune.results.store.advice import RATIO_ERROR, Advice, Verdict
from autotune.results.store.forecast import Forecast
from autotune.results.store.record import BestPlan
from autotune.workloads.changes.cluster_edits import Setting, edited
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import InfeasiblePlanError

_BUSY = 0.9
"""A device that computes for this part of the step is what limits it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The best plan for a setting."""

    forecast: Forecast | None
    """None: no plan fits."""
    limited_by: str
    """Or why nothing fits."""
    measured_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Planner:
    """Finds the best plan for a setting: the same search as `autotune plan`."""

    question: Question
    aim: Aim
    source: PredictorSource
    measure: Callable[[BestPlan, Cluster], float] | None = None
    """Seconds of a step, by a run."""

    def best(self, setting: Setting) -> Found:
        predictor = self.source.of(setting)
        try:
            forecast = plan(self.question, predictor, self.aim).forecast
        except InfeasiblePlanError as error:
            return Found(forecast=None, limited_by=str(error))
        measured = None
        if self.measure is not None:
            measured = self.measure(as_best_plan(forecast, predictor), setting.cluster)
        return Found(forecast=forecast, limited_by=limited_by(forecast), measured_s=measured)


def advise_changes(
    planner: Planner, setting: Setting, changes: Sequence[Edits], say: Callable[[str], None]
) -> list[Advice]:
    """The cluster as it is, then every change, the most samples per second first."""
    settings = {edits: edited(setting, edits) for edits in changes}  # all are checked before any is planned
    say(setting.cluster.name)
    as_it_is = planner.best(setting)
    base = Advice(
        change="",
        verdict=None,
        forecast=as_it_is.forecast,
        limited_by=as_it_is.limited_by,
        measured_s=as_it_is.measured_s,
    )
    found = []
    for number, (edits, changed) in enumerate(settings.items(), start=1):
        text = ", ".join(edits)
        say(f"{text} ({number} of {len(settings)})")
        found.append(_advice(text, as_it_is.forecast, planner.best(changed)))
    return [base, *sorted(found, key=lambda one: -_rate(one.forecast))]


def _advice(change: str, base: Forecast | None, found: Found) -> Advice:
    advice = Advice(
        change=change,
        verdict=Verdict.DOES_NOT_FIT,
        forecast=found.forecast,
        limited_by=found.limited_by,
        measured_s=found.measured_s,
    )
    if found.forecast is None:
        return advice
    if base is None:
        return replace(advice, verdict=Verdict.MAKES_IT_FIT)
    times = found.forecast.samples_per_s / base.samples_per_s
    low, high = times / (1 + RATIO_ERROR), times * (1 + RATIO_ERROR)
    verdict = Verdict.WORTH_IT if low > 1 else Verdict.SLOWER if high < 1 else Verdict.NO_DIFFERENCE
    return replace(advice, verdict=verdict, times=times, times_low=low, times_high=high)


def _rate(forecast: Forecast | None) -> float:
    return 0.0 if forecast is None else forecast.samples_per_s


def limited_by(forecast: Forecast) -> str:
    """One sentence: the device that computes nearly all the time, else the largest cost."""
    rank = max(forecast.ranks, key=lambda one: one.compute_s)
    share = rank.compute_s / forecast.step_s
    text = f"rank {rank.rank} ({rank.device}) computes for {100 * min(share, 1.0):.0f} % of the step"
    costs = largest_costs(forecast.breakdown, 1) if forecast.breakdown is not None else ()
    return text if share >= _BUSY or not costs else costs[0]
