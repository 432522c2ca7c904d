"""Figures of predictions held against measurements: errors by kind of run and of knob, ranks, and what the first-ranked loses.

The first-ranked plan of a cell is the one predicted fastest; it loses what it takes longer than the fastest measured. Both
are medians of a few steps, so the loss has an interval (both sides resampled): one that reaches 0 is within the noise,
a miss is one that does not. Whether the fastest is so by luck no interval of one session says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from autotune.results.judge.stats import bootstrap_interval, spearman, unpaired_speedup
from autotune.workloads.plan import CODECS, COLLECTIVES, Plan

CONFIDENCE = 0.95
KNOBS: dict[str, Callable[[Plan], bool]] = {
    "ddp": lambda plan: plan.comm.reducer == "ddp",
    "bucketed": lambda plan: plan.comm.reducer == "bucketed",
    "scheduled, all": lambda plan: plan.comm.reducer == "scheduled",
    "scheduled, no cross-step overlap": lambda plan: plan.comm.reducer == "scheduled" and not plan.comm.crosses_steps,
    "cross-step overlap": lambda plan: plan.comm.reducer == "scheduled" and plan.comm.crosses_steps,
    "shards": lambda plan: plan.comm.collective == "shards",
    "hierarchical": lambda plan: COLLECTIVES[plan.comm.collective].sums_in_hosts,
    "factors": lambda plan: bool(plan.compression.factors),
} | {f"codec {codec}": lambda plan, codec=codec: plan.compression.codec == codec for codec in CODECS}
"""A plan counts under every knob that it turns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A prediction beside its measurement."""

    workload: str
    cluster: str
    label: str
    plan: Plan
    predicted_s: float
    measured_s: float
    steps_s: tuple[float, ...]
    """What was measured, step by step."""
    predicted_bytes: float
    """Of the rank that holds most."""
    measured_bytes: float

    @property
    def error(self) -> float:
        return abs(self.predicted_s - self.measured_s) / self.measured_s

    @property
    def memory_error(self) -> float:
        return abs(self.predicted_bytes - self.measured_bytes) / self.measured_bytes

    @property
    def cell(self) -> str:
        return f"{self.workload}@{self.cluster}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """What the first-ranked plan of a cell takes longer than the fastest measured there, as a share."""

    value: float
    low: float
    high: float
    best_s: float
    best_low_s: float
    best_high_s: float
    """The fastest plan's own interval."""

    @property
    def is_miss(self) -> bool:
        return self.low > 0


def first_ranked_loss(pairs: Sequence[Pair]) -> Loss:
    """Of the plans of one cell."""
    pick = min(pairs, key=lambda pair: pair.predicted_s)
    best = min(pairs, key=lambda pair: pair.measured_s)
    best_low_s, best_high_s = bootstrap_interval(best.steps_s, confidence=CONFIDENCE)
    # The fastest itself loses nothing, and nothing is uncertain about that.
    low, high = 0.0, 0.0
    if pick is not best:
        ratio = unpaired_speedup(pick.steps_s, best.steps_s, confidence=CONFIDENCE)
        low, high = ratio.low - 1, ratio.high - 1
    return Loss(
        value=pick.measured_s / best.measured_s - 1,
        low=low,
        high=high,
        best_s=best.measured_s,
        best_low_s=best_low_s,
        best_high_s=best_high_s,
    )


def summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """The figures of one kind of run."""
    cells = {cell: [pair for pair in pairs if pair.cell == cell] for cell in sorted({pair.cell for pair in pairs})}
    losses = {cell: first_ranked_loss(found) for cell, found in cells.items()}
    return {
        "plans": len(pairs),
        "median_error": median(pair.error for pair in pairs),
        "worst_error": max(pair.error for pair in pairs),
        "spearman_all": _spearman(pairs),
        "spearman_per_cell_median": median(map(_spearman, cells.values())),
        "first_ranked_loses_median": median(loss.value for loss in losses.values()),
        "first_ranked_loses": losses,
        "first_ranked_misses": [cell for cell, loss in losses.items() if loss.is_miss],
        "memory_worst_error": max(pair.memory_error for pair in pairs),
        "median_error_per_cell": {cell: median(pair.error for pair in found) for cell, found in cells.items()},
        "per_knob": per_knob(pairs),
    }


def per_knob(pairs: Sequence[Pair]) -> dict[str, dict[str, float]]:
    """How far off plans are that turn a knob: where they are many, the knob's own reading is checked."""
    chosen = {knob: [pair for pair in pairs if turns(pair.plan)] for knob, turns in KNOBS.items()}
    return {
        knob: {
            "plans": len(found),
            "median_error": median(pair.error for pair in found),
            "worst_error": max(pair.error for pair in found),
            # Signed: above 0 the measurement was slower than predicted.
            "median_bias": median(pair.measured_s / pair.predicted_s - 1 for pair in found),
        }
        for knob, found in chosen.items()
        if found
    }


def _spearman(pairs: Sequence[Pair]) -> float:
    return spearman([pair.predicted_s for pair in pairs], [pair.measured_s for pair in pairs])
