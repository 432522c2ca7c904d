"""α and β of a type of resource from measured times on k units: t(k) = t(1)·(1 − share + share/k).

Least squares of relative errors over t(1) and the share, in closed form: with x = 1/k the model is a line a + b·x, of which the share
is b/(a + b). The error that is reported is the largest relative distance of a measured time from the line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autotune.workloads.errors import SpecError

_FEWEST = 2
"""Different numbers of units: with two the line goes through both, and the error says nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    """Measured times of a type: rows [k, seconds], in any unit of work that is the same in all rows."""

    compute: tuple[tuple[float, ...], ...] = ()
    transfer: tuple[tuple[float, ...], ...] = ()


def fit_share(rows: tuple[tuple[float, ...], ...], where: str) -> tuple[float, float | None]:
    """The share from 0 to 1, and its error; no error where only two numbers of units were measured."""
    for place, row in enumerate(rows):
        _check_row(row, f"{where}[{place}]")
    units, seconds = np.array(rows, dtype=np.float64).T
    different = len(set(units.tolist()))
    if different < _FEWEST:
        raise SpecError(
            f"{where} has times on {different} number of units: measure on at least two, such as 1, 2 and 4"
        )
    weighted = np.stack([1 / seconds, 1 / (units * seconds)], axis=1)
    (fixed, divided), *_ = np.linalg.lstsq(weighted, np.ones(len(seconds)), rcond=None)
    share = _within(fixed, divided)
    shape = 1 - share + share / units
    one_s = float((shape / seconds).sum() / ((shape / seconds) ** 2).sum())
    error = float(np.abs(one_s * shape / seconds - 1).max())
    return share, error if len(rows) > _FEWEST else None


def _within(fixed: float, divided: float) -> float:
    """More than perfect scaling counts as perfect, less than none as none."""
    if fixed <= 0:
        return 1.0
    return max(float(divided / (fixed + divided)), 0.0) if fixed + divided > 0 else 0.0


def _check_row(row: tuple[float, ...], here: str) -> None:
    if len(row) != 2:
        raise SpecError(f"{here} has {len(row)} numbers: give two, units and seconds")
    units, seconds = row
    if not (1 <= units < math.inf and units == int(units)):
        raise SpecError(f"{here} is measured on {units:g} units: give a whole number from 1")
    if not 0 < seconds < math.inf:
        raise SpecError(f"{here} took {seconds:g} s: give a time above 0")
