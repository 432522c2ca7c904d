"""Coordinates of a split of the batch: one log share ratio per rank or, in a large cluster, per kind of ranks.

Samples are in proportion to reference · 2^ratio, where the reference is each rank's speed as the default trial showed it. Every
point is a feasible split (sums, minimums and memory caps hold by construction), ratio 0 is the proportional split, and random
points are sensible ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.space.knob import Reset, Scope, Values
from autotune.workloads.plan import Plan
from autotune.workloads.split import proportional

MAX_LOG_SHARE = 0.5
TEXT = "the share of each rank, as the binary logarithm of its ratio to the rank's speed"


def coordinates(scope: Scope) -> dict[str, Values]:
    """None for a single rank, and none for a single kind."""
    kinds = sorted(set(_kinds(scope)))
    return {_name(kind): Values(low=-MAX_LOG_SHARE, high=MAX_LOG_SHARE) for kind in (kinds if len(kinds) > 1 else ())}


def samples_at(params: Mapping[str, Any], scope: Scope) -> tuple[int, ...]:
    """The split at a point."""
    kinds = _kinds(scope)
    ratios = {kind: 2.0 ** params.get(_name(kind), 0.0) for kind in set(kinds)}
    weights = [speed * ratios[kind] for kind, speed in zip(kinds, scope.reference, strict=True)]
    return proportional(weights, scope.global_batch, scope.limits)


def point_of(samples: Sequence[int], scope: Scope) -> dict[str, float]:
    """The coordinates of a split: exactly that split wherever they reach it, else the nearest they do."""
    kinds = _kinds(scope)
    if len(set(kinds)) == 1:
        return {}
    total, speed, most = defaultdict[int, int](int), defaultdict[int, float](float), defaultdict[int, int](int)
    for kind, count, one, cap in zip(kinds, samples, scope.reference, scope.limits.caps, strict=True):
        total[kind] += count
        speed[kind] += one * (cap > 0)
        most[kind] = max(most[kind], cap)
    ratios = {kind: math.log2(max(total[kind], 0.5) / speed[kind]) for kind in total if most[kind] > 0}
    middle = (max(ratios.values()) + min(ratios.values())) / 2
    return {
        _name(kind): min(max(ratios.get(kind, middle) - middle, -MAX_LOG_SHARE), MAX_LOG_SHARE)
        for kind in sorted(total)
    }


def reset(best: Plan, default: Plan) -> Reset:
    """The split as the default has it."""
    return Reset(title="batch split", text="even split", plan=replace(best, batch=default.batch))


def is_coordinate(name: str) -> bool:
    """Whether a coordinate belongs to the split."""
    return name.startswith("log_share.")


def _kinds(scope: Scope) -> Sequence[int]:
    return scope.rank_kinds or range(len(scope.reference))


def _name(kind: int) -> str:
    return f"log_share.{kind}"
