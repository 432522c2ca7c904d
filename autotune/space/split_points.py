"""Coordinates of a split of the batch: one log share ratio per rank.

Samples are in proportion to reference · 2^ratio, where the reference is each rank's speed as the default trial showed it. Every
point is a feasible split (sums, minimums and memory caps hold by construction), ratio 0 is the proportional split, and random
points are sensible ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.space.knob import Reset, Scope, Values
from autotune.workloads.plan import Plan
from autotune.workloads.split import proportional

MAX_LOG_SHARE = 0.5
TEXT = "the share of each rank, as the binary logarithm of its ratio to the rank's speed"


def coordinates(scope: Scope) -> dict[str, Values]:
    """None for a single rank."""
    ranks = range(len(scope.reference)) if len(scope.reference) > 1 else ()
    return {_name(rank): Values(low=-MAX_LOG_SHARE, high=MAX_LOG_SHARE) for rank in ranks}


def samples_at(params: Mapping[str, Any], scope: Scope) -> tuple[int, ...]:
    """The split at a point."""
    weights = [speed * 2 ** params.get(_name(rank), 0.0) for rank, speed in enumerate(scope.reference)]
    return proportional(weights, scope.global_batch, scope.limits)


def point_of(samples: Sequence[int], scope: Scope) -> dict[str, float]:
    """The coordinates of a split: exactly that split wherever they reach it, else the nearest they do."""
    if len(samples) == 1:
        return {}
    counts = [max(count, 0.5) for count in samples]
    ratios = [math.log2(count / speed) for count, speed in zip(counts, scope.reference, strict=True)]
    middle = (max(ratios) + min(ratios)) / 2
    return {_name(rank): min(max(ratio - middle, -MAX_LOG_SHARE), MAX_LOG_SHARE) for rank, ratio in enumerate(ratios)}


def reset(best: Plan, default: Plan) -> Reset:
    """The split as the default has it."""
    return Reset(title="batch split", text="even split", plan=replace(best, batch=default.batch))


def is_coordinate(name: str) -> bool:
    """Whether a coordinate belongs to the split."""
    return name.startswith("log_share.")


def _name(rank: int) -> str:
    return f"log_share.{rank}"
