"""How far two runs of a loop are apart: the norm of the difference, relative to the norm."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.loops.description import Loop

EXACT = 1e-10
"""In float64: rounding of sums in another order."""
CALM = 1e-11
"""A loop that rounding alone moves further is sensitive."""
SENSITIVE_FACTOR, LOW_PRECISION_FACTOR = 10.0, 10.0
"""Ranks round in low precision where one process does not: their own sums, and these times their weights."""
LOW_PRECISION_FLOOR = 2.0**-11
"""An eighth of bfloat16's epsilon: one such run is not two that happen to round alike."""
LOW_PRECISION = ("bf16", "autocast", "Muon")
"""Features that compute in bfloat16 or float16."""
NORM_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def distance(found: dict[str, Any], reference: dict[str, Any], *, without: tuple[str, ...] = ()) -> float:
    """The larger of that of all parameters and buffers, and that of all values logged; infinite where they do not match."""
    left, right = (_kept(run["state"], without) for run in (found, reference))
    if left.keys() != right.keys() or len(found["log"]) != len(reference["log"]):
        return math.inf
    logs = [torch.tensor(run["log"], dtype=torch.float64) for run in (found, reference)]
    return max(_relative(left, right), _relative({"log": logs[0]}, {"log": logs[1]}))


def _kept(state: dict[str, Tensor], without: tuple[str, ...]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if not name.endswith(without)} if without else state


def _relative(found: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    squares, total = 0.0, 0.0
    for name, value in reference.items():
        if found[name].shape != value.shape or found[name].dtype != value.dtype:
            return math.inf
        wide = torch.cdouble if value.is_complex() else torch.float64
        squares += float((found[name].to(wide) - value.to(wide)).abs().square().sum())
        total += float(value.to(wide).abs().square().sum())
    apart = math.sqrt(squares) / max(math.sqrt(total), 1e-300)
    return apart if math.isfinite(apart) else math.inf


def tolerance(loop: Loop, rounding: float) -> float:
    """`rounding`: the distance of two runs in one process that add up in different orders."""
    if loop.has(*LOW_PRECISION):
        return max(LOW_PRECISION_FLOOR, LOW_PRECISION_FACTOR * rounding)
    return EXACT if rounding <= CALM else max(EXACT, SENSITIVE_FACTOR * rounding)


def is_sensitive(loop: Loop, rounding: float) -> bool:
    return rounding > CALM and not loop.has(*LOW_PRECISION)


def has_local_norms(loop: Loop) -> bool:
    """Ranks have buffers of their own, of which rank 0's are compared."""
    return loop.has("batch_norm", "batch_norm_conv") and not loop.has("sync_norm")
