"""Measured steps as files of ours: a graph and a profile of the model, and the cluster of one of its placements."""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.calibrate.fit_steps import Measured, calibration_rows, fit_models
from autotune.calibrate.step_model import NOMINAL_BYTES, Predictions, StepModel, cluster_of, graph_of, profile_of
from autotune.results.imports.imported import Asked, Imported
from autotune.results.imports.step_rows import StepRow, parse_placement, read_steps
from autotune.workloads.errors import SpecError
from autotune.workloads.graphs.graph_file import GraphFile

_MANY_ROWS = 64
"""Above this many, only calibration rows are fitted: a fit to all takes minutes and is no better known."""


def read(asked: Asked) -> Imported:
    """The rows of one file, all of one model on hosts of one kind."""
    if len(asked.files) != 1:
        raise SpecError(
            f"{len(asked.files)} files were given: measured steps are one file per model, import one at a time"
        )
    rows = read_steps(asked.files[0], time_unit=asked.time_unit or "s")
    if asked.param_bytes is not None and not 0 < asked.param_bytes < math.inf:
        raise SpecError(f"--param-bytes {asked.param_bytes}: it must be above 0")
    model, num_fitted = _fitted(asked, rows)
    placement = _placement(asked, rows)
    cluster = replace(cluster_of(model, placement), description=f"fitted to {num_fitted} measured steps")
    return Imported(
        graph=_graph(model, asked, placement, rows),
        profile=profile_of(model, sorted({count for row in rows for count in row.placement} | set(placement))),
        cluster=cluster,
        notes=tuple(_notes(model, rows, num_fitted, known=asked.param_bytes is not None)),
    )


def _fitted(asked: Asked, rows: list[StepRow]) -> tuple[StepModel, int]:
    chosen = calibration_rows(rows) if len(rows) > _MANY_ROWS else rows
    measured = Measured(name=asked.model, rows=tuple(chosen), param_bytes=asked.param_bytes or NOMINAL_BYTES)
    return fit_models([measured], device=asked.device or "gpu")[0], len(chosen)


def _placement(asked: Asked, rows: list[StepRow]) -> tuple[int, ...]:
    if asked.placement:
        return parse_placement(asked.placement)
    return max((row.placement for row in rows), key=lambda counts: (sum(counts), len(counts), counts))


def _graph(model: StepModel, asked: Asked, placement: tuple[int, ...], rows: list[StepRow]) -> GraphFile:
    each = min(row.samples for row in rows)
    return graph_of(model, asked.global_batch or each * sum(placement))


def _notes(model: StepModel, rows: list[StepRow], num_fitted: int, *, known: bool) -> list[str]:
    predictions = Predictions(model)
    errors = sorted(abs(predictions.step_s(row.placement, row.samples) / row.step_s - 1) for row in rows)
    half, worst = (100 * errors[place] for place in (len(errors) // 2, -1))
    nic, pair, slower = (100 * loss for loss in (model.nic_loss, model.pair_loss, model.slowdown))
    notes = [
        f"fitted to {num_fitted} of {len(rows)} steps: median error over all of them {half:.1f} %, worst {worst:.1f} %",
        f"{100 * model.overlap:.0f} % of computing hides sums",
        f"a NIC loses {nic:.0f} % per further GPU, two hosts lose {pair:.0f} %, computing {slower:.0f} % per further GPU",
        "the cluster file holds for its placement only: import again with --placement for another",
    ]
    if not known:
        notes.append(
            f"gradients count as {NOMINAL_BYTES} bytes, and bandwidths are relative to that: give --param-bytes"
        )
    return notes
