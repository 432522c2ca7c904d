"""What a training run ends with."""

from __future__ import annotations

from dataclasses import dataclass

from results.record import RankResult
from results.stats import Ratio
from workloads.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingReport:
    """A training run with a plan, beside the default measured in the same job."""

    workload: str
    cluster: str
    label: str
    plan: Plan
    num_steps: int
    seconds: float
    samples_per_s: float
    losses: tuple[float, ...]
    accuracy: float | None
    speedup: Ratio | None
    """Of the plan over torch DDP with its defaults and an even split, interleaved before the training; None where that cannot run."""
    ranks: tuple[RankResult, ...]
