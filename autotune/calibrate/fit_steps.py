"""Fits step models to measured steps: the simulator's predictions are made equal to the rows, in logarithms.

Computing is the line through the rows of one GPU. Bandwidths, overlap and slowdown of each model, and the two losses of the
hosts, which all models measured on the same cluster share, minimise the squared log-ratios by least squares with bounds.
Rows that do not determine a parameter leave it at its expectation, towards which each is drawn weakly: two thirds of computing
is backward, a fabric is ten times as fast as a NIC, nothing is lost. A model with two rows has more parameters than rows, and
these expectations choose among the fits.

Where there are many rows, `calibration_rows` takes two of each kind of placement by a fixed rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.calibrate.step_model import NOMINAL_BYTES, Predictions, StepModel
from autotune.results.imports.imported import imported_fit
from autotune.results.imports.step_rows import KINDS, ONE_GPU, StepRow
from autotune.results.store.fits import WorkFit
from autotune.simulate.task_graph import Floats
from autotune.workloads.errors import SpecError

_BACKWARD_SHARE = 2 / 3
_FABRIC_TIMES = 10.0
_WEIGHTS = (0.0, 0.02, 0.1, 1.0)
"""How strongly log NIC seconds, log fabric seconds, logit of the overlap and slowdown are drawn to their expectations."""
_LOSS_WEIGHT = 0.1
_OWN, _SHARED = len(_WEIGHTS), 2
_STEP = 1e-4
_MOST_EVALUATIONS = 40
_LOW, _HIGH = (-40.0, -40.0, -6.0, 0.0), (20.0, 20.0, 6.0, 2.0)
_LEAST_SHARE = 0.02
"""Of a step, for a first guess of the time of its sums."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The rows of one model."""

    name: str
    rows: tuple[StepRow, ...]
    param_bytes: float = NOMINAL_BYTES


def calibration_rows(rows: Sequence[StepRow]) -> list[StepRow]:
    """Two of each kind of placement: the fewest GPUs with the fewest samples each, and the most GPUs with the most samples."""
    chosen: list[StepRow] = []
    for kind in KINDS:
        of_kind = [row for row in rows if row.kind == kind]
        if of_kind:
            chosen += (min(of_kind, key=_extent), max(of_kind, key=_extent))
    return list(dict.fromkeys(chosen))


def _extent(row: StepRow) -> tuple[int, int, tuple[int, ...], int]:
    return row.num_gpus, len(row.placement), row.placement, row.samples


def fit_models(measured: Sequence[Measured], *, device: str = "gpu") -> list[StepModel]:
    """A model for each, all on hosts of one kind."""
    from scipy.optimize import least_squares  # noqa: PLC0415 - slow to load, and only this needs it

    fits = [_Fit.of(one, device) for one in measured]
    start = np.array([value for fit in fits for value in fit.start] + [0.0] * _SHARED)
    low = np.array(_LOW * len(fits) + (0.0,) * _SHARED)
    high = np.array(_HIGH * len(fits) + (4.0,) * _SHARED)

    def residuals(x: Floats) -> Floats:
        shared = x[-_SHARED:]
        parts = [fit.residuals(_own(x, index), shared) for index, fit in enumerate(fits)]
        return np.concatenate([*parts, _LOSS_WEIGHT * shared])

    def jacobian(x: Floats) -> Floats:
        return _jacobian(fits, x)

    found = least_squares(
        residuals, np.clip(start, low + 1e-6, high), jac=jacobian, bounds=(low, high), max_nfev=_MOST_EVALUATIONS
    )
    return [fit.model(_own(found.x, index), found.x[-_SHARED:]) for index, fit in enumerate(fits)]


def _own(x: Floats, index: int) -> Floats:
    return x[index * _OWN : (index + 1) * _OWN]


def _jacobian(fits: Sequence[_Fit], x: Floats) -> Floats:
    """Differences: a model's rows depend on its own parameters and the shared ones only."""
    shared, blocks = x[-_SHARED:], []
    for index, fit in enumerate(fits):
        own = _own(x, index)
        base = fit.residuals(own, shared)
        block = np.zeros((len(base), len(x)))
        for place in range(_OWN):
            moved = own.copy()
            moved[place] += _STEP
            block[:, index * _OWN + place] = (fit.residuals(moved, shared) - base) / _STEP
        for place in range(_SHARED):
            moved = shared.copy()
            moved[place] += _STEP
            block[:, len(x) - _SHARED + place] = (fit.residuals(own, moved) - base) / _STEP
        blocks.append(block)
    last = np.zeros((_SHARED, len(x)))
    last[:, -_SHARED:] = _LOSS_WEIGHT * np.eye(_SHARED)
    return np.concatenate([*blocks, last])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fit:
    """One model's rows, and the start of its parameters."""

    measured: Measured
    device: str
    compute: WorkFit
    rows: tuple[StepRow, ...]
    """Of several GPUs."""
    start: tuple[float, ...]

    @classmethod
    def of(cls, measured: Measured, device: str) -> _Fit:
        compute = compute_line(measured)
        rows = tuple(row for row in measured.rows if row.kind != ONE_GPU)
        nic, fabric = (math.log(seconds) for seconds in _first_guess(rows, compute))
        return cls(
            measured=measured,
            device=device,
            compute=compute,
            rows=rows,
            start=(nic, fabric, _logit(_BACKWARD_SHARE), 0.0),
        )

    def model(self, own: Floats, shared: Floats) -> StepModel:
        nic_s, fabric_s = np.exp(own[:2])
        return StepModel(
            name=self.measured.name,
            device=self.device,
            compute=self.compute,
            overlap=float(1 / (1 + np.exp(-own[2]))),
            nic_bytes_per_s=float(self.measured.param_bytes / nic_s),
            fabric_bytes_per_s=float(self.measured.param_bytes / fabric_s),
            slowdown=float(own[3]),
            nic_loss=float(shared[0]),
            pair_loss=float(shared[1]),
            param_bytes=self.measured.param_bytes,
        )

    def residuals(self, own: Floats, shared: Floats) -> Floats:
        predictions = Predictions(self.model(own, shared))
        errors = [math.log(predictions.step_s(row.placement, row.samples) / row.step_s) for row in self.rows]
        expected = (own[0], own[0] - math.log(_FABRIC_TIMES), _logit(_BACKWARD_SHARE), 0.0)
        drawn = [weight * (value - at) for weight, value, at in zip(_WEIGHTS, own, expected, strict=True)]
        return np.array([*errors, *drawn])


def compute_line(measured: Measured) -> WorkFit:
    """Computing over samples, from the steps of one GPU."""
    seconds: dict[int, list[float]] = {}
    for row in measured.rows:
        if row.kind == ONE_GPU:
            seconds.setdefault(row.samples, []).append(row.step_s)
    if not seconds:
        raise SpecError(
            f"{measured.name!r} has no step of one GPU: computing cannot be separated from sums; measure one GPU alone"
        )
    return imported_fit([(samples, sum(found) / len(found)) for samples, found in sorted(seconds.items())])


def _first_guess(rows: Sequence[StepRow], compute: WorkFit) -> tuple[float, float]:
    """Seconds in which all gradients pass a NIC, and a fabric."""

    def guesses(several_hosts: bool) -> Iterator[float]:
        for row in rows:
            if (len(row.placement) > 1) == several_hosts:
                hidden_s = _BACKWARD_SHARE * compute.seconds(row.samples)
                rest_s = row.step_s - compute.seconds(row.samples) + hidden_s
                passes = 2 * (row.num_gpus - 1) / row.num_gpus
                yield max(rest_s, _LEAST_SHARE * row.step_s) / passes

    nic, fabric = (min(guesses(several), default=None) for several in (True, False))
    if nic is None and fabric is None:
        typical = compute.seconds(compute.high)
        return typical, typical / _FABRIC_TIMES
    if nic is None:
        assert fabric is not None
        return fabric * _FABRIC_TIMES, fabric
    return nic, nic / _FABRIC_TIMES if fabric is None else min(fabric, nic)


def _logit(share: float) -> float:
    return math.log(share / (1 - share))
