"""Scores of predicted steps against measured ones: errors, ranks, what the first-ranked loses; and a naive model beside ours.

The naive model is a line of computing over samples plus a ring, without overlap: step = a + c·b + 2(n-1)·latency + 2(n-1)/n·time
of all bytes, one latency and one time within a host and one between hosts, fitted to the same rows as ours.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from scipy.optimize import nnls

from autotune.calibrate.fit_steps import Measured, calibration_rows, fit_models
from autotune.calibrate.step_model import Predictions
from autotune.profilers.fit import fit_line
from autotune.results.imports.step_rows import KINDS, ONE_GPU, StepRow
from autotune.results.judge.stats import spearman

Predict = Callable[[StepRow], float]
Rule = Callable[[Sequence[StepRow]], list[StepRow]]
LEAST_ALTERNATIVES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A row that was not fitted, and its prediction."""

    row: StepRow
    predicted_s: float

    @property
    def error(self) -> float:
        return abs(self.predicted_s / self.row.step_s - 1)


def quantile(values: Iterable[float], share: float) -> float:
    return float(np.quantile(list(values), share))


def summary(pairs: Sequence[Pair]) -> dict[str, float | int]:
    """Errors of some rows."""
    errors = [pair.error for pair in pairs]
    return {
        "rows": len(pairs),
        "median_error": median(errors),
        "p90_error": quantile(errors, 0.9),
        "worst_error": max(errors),
        "rank_correlation": spearman([pair.predicted_s for pair in pairs], [pair.row.step_s for pair in pairs]),
    }


def choices(pairs: Sequence[Pair]) -> dict[str, float | int]:
    """Placements of as many GPUs with as many samples each are alternatives: does the prediction choose a fast one?"""
    cells: dict[tuple[int, int], list[Pair]] = {}
    for pair in pairs:
        cells.setdefault((pair.row.num_gpus, pair.row.samples), []).append(pair)
    found = [cell for cell in cells.values() if len(cell) >= LEAST_ALTERNATIVES]
    first, two, last, ranks = [], [], [], []
    for cell in found:
        ordered = sorted(cell, key=lambda pair: pair.predicted_s)
        best = min(pair.row.step_s for pair in cell)
        first.append(ordered[0].row.step_s / best - 1)
        two.append(min(pair.row.step_s for pair in ordered[:2]) / best - 1)
        last.append(median(pair.row.step_s for pair in cell) / best - 1)
        ranks.append(spearman([pair.predicted_s for pair in cell], [pair.row.step_s for pair in cell]))
    if not found:
        return {"cells": 0}
    return {
        "cells": len(found),
        "rank_correlation": median(ranks),
        "regret_of_first": median(first),
        "worst_regret_of_first": max(first),
        "regret_of_best_of_two": median(two),
        "regret_of_any": median(last),
    }


def ours(measured: Sequence[Measured]) -> list[Predict]:
    """Fitted together: the models ran on one cluster."""
    return [_predict(Predictions(model)) for model in fit_models(measured)]


def ours_alone(measured: Sequence[Measured]) -> list[Predict]:
    """Each model from its own rows only."""
    return [_predict(Predictions(fit_models([one])[0])) for one in measured]


def _predict(predictions: Predictions) -> Predict:
    return lambda row: predictions.step_s(row.placement, row.samples)


def naive(measured: Sequence[Measured]) -> list[Predict]:
    return [_naive(one) for one in measured]


def _naive(measured: Measured) -> Predict:
    line = fit_line([(row.samples, row.step_s) for row in measured.rows if row.kind == ONE_GPU])
    rings = {}
    for several in (False, True):
        rows = [row for row in measured.rows if row.num_gpus > 1 and (len(row.placement) > 1) == several]
        if rows:
            rest = [max(row.step_s - line.at(row.samples), 0.0) for row in rows]
            rings[several] = nnls(np.array([_ring(row) for row in rows]), np.array(rest))[0]

    def predict(row: StepRow) -> float:
        ring = rings.get(len(row.placement) > 1, np.zeros(2)) if row.num_gpus > 1 else np.zeros(2)
        return max(line.at(row.samples) + float(np.dot(_ring(row), ring)), 1e-9)

    return predict


def _ring(row: StepRow) -> tuple[float, float]:
    return 2 * (row.num_gpus - 1), 2 * (row.num_gpus - 1) / row.num_gpus


def pairs_of(
    rows: dict[str, list[StepRow]], rule: Rule, make: Callable[[Sequence[Measured]], list[Predict]]
) -> dict[str, list[Pair]]:
    """By model: every row that the rule did not choose, predicted from those that it chose."""
    measured = [Measured(name=name, rows=tuple(rule(of))) for name, of in rows.items()]
    found = {}
    for one, predict in zip(measured, make(measured), strict=True):
        fitted = set(one.rows)
        found[one.name] = [Pair(row=row, predicted_s=predict(row)) for row in rows[one.name] if row not in fitted]
    return found


def joined(pairs: dict[str, list[Pair]]) -> list[Pair]:
    return [pair for of in pairs.values() for pair in of]


def ends(first: Callable[..., StepRow], last: Callable[..., StepRow]) -> Rule:
    """Of each kind: the fewest GPUs and the most, at their smallest or largest number of samples."""

    def rule(rows: Sequence[StepRow]) -> list[StepRow]:
        chosen = [row for row in calibration_rows(rows) if row.kind == ONE_GPU]
        for kind in KINDS[1:]:
            extent = sorted({(row.num_gpus, len(row.placement), row.placement) for row in rows if row.kind == kind})
            for take, place in ((first, extent[:1]), (last, extent[-1:])):
                at = [row for row in rows if place and row.placement == place[0][-1]]
                chosen += [take(at, key=lambda row: row.samples)] if at else []
        return list(dict.fromkeys(chosen))

    return rule


def drawn(seed: int) -> Rule:
    """Two rows of each kind at random, and the line of one GPU."""
    draw = random.Random(seed)

    def rule(rows: Sequence[StepRow]) -> list[StepRow]:
        chosen = [row for row in calibration_rows(rows) if row.kind == ONE_GPU]
        for kind in KINDS[1:]:
            of_kind = [row for row in rows if row.kind == kind]
            chosen += draw.sample(of_kind, min(len(of_kind), 2))
        return chosen

    return rule


def profiled(rows: Sequence[StepRow]) -> list[StepRow]:
    """The rows of the rule, and all steps of one GPU, as a profile of the device would give them."""
    return list(dict.fromkeys([*calibration_rows(rows), *(row for row in rows if row.kind == ONE_GPU)]))
