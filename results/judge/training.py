"""What a training run ends with."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.profilers.breakdown import Breakdown
from autotune.results.judge.stats import Ratio
from autotune.results.store.decision import Decision
from autotune.results.store.forecast import Forecast
from autotune.results.store.record import RankResult
from autotune.workloads.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Steps of a run between two changes of a scenario."""

    first: int
    last: int
    step_s: float
    """Their mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingReport:
    """A training run with a plan, beside the default measured in the same job."""

    workload: str
    cluster: str
    label: str
    scenario: str
    """The scenario that was replayed, or nothing."""
    plan: Plan
    num_steps: int
    seconds: float
    samples_per_s: float
    losses: tuple[float, ...]
    accuracy: float | None
    stretches: tuple[Stretch, ...]
    """Where a scenario was replayed: the run cut at its changes."""
    speedup: Ratio | None
    """Of the plan over torch DDP with its defaults and an even split, interleaved before the training; None where that cannot run."""
    ranks: tuple[RankResult, ...]
    breakdown: Breakdown
    """Where the time of one more step went, traced and not counted."""
    costs: tuple[str, ...]
    decisions: tuple[Decision, ...] = ()
    """Where the plan could change while training: how it did, and why."""
    warnings: tuple[str, ...] = ()
    """What affects the trained model."""
    predicted: Forecast | None = None
    """Of a plan with pipeline stages: its prediction, where costs are stated or measured."""
