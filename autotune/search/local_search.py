"""Search on a prediction alone: every choice of the discrete knobs, then samples moved between ranks while it pays.

Predictions are cheap, so nothing is drawn at random: all buckets, codecs, transports and collectives with the split that
the devices' costs call for; from the best few, moves of a few samples from one rank to another, and all knobs again for
the split that is left, until no move helps. Optuna on the same prediction is the control (`--method tpe`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from autotune.search.methods import Judge, PredictedSearch
from autotune.space.space import Space
from autotune.workloads.plan import Plan

_STARTS = 3
_MOVES = (8, 4, 2, 1)


def knob_plans(space: Space, samples: tuple[int, ...]) -> list[Plan]:
    """Every choice of the knobs that are not the split, each plan once; and every plan with stages, which have no split."""
    return list(dict.fromkeys([*(space.with_knobs(samples, knobs) for knobs in space.grid()), *space.staged.plans]))


def moved(plan: Plan, space: Space) -> list[Plan]:
    """The plan with a few samples moved from one rank to another; none of a plan with stages."""
    if plan.pipeline is not None:
        return []
    samples, limits = plan.batch.samples, space.limits
    plans = []
    for step in _MOVES:
        for source, target in product(range(len(samples)), repeat=2):
            if source == target or samples[source] - step < limits.minimums[source]:
                continue
            if samples[target] + step > limits.caps[target]:
                continue
            changed = list(samples)
            changed[source] -= step
            changed[target] += step
            plans.append(replace(plan, batch=replace(plan.batch, samples=tuple(changed))))
    return plans


def descend(space: Space, start: tuple[int, ...], judge: Judge, *, most: int = 20_000) -> list[tuple[float, Plan]]:
    """All plans that were judged, the best first."""
    seen: dict[str, tuple[float, Plan]] = {}

    def best_of(plans: Sequence[Plan]) -> tuple[float, Plan] | None:
        new = []
        for plan in plans:
            key = plan.fingerprint()
            if key not in seen and len(seen) < most:
                seen[key] = (judge(plan), plan)
            if key in seen:
                new.append(seen[key])
        return min(new, key=lambda entry: entry[0], default=None)

    best_of(knob_plans(space, start))
    starts = sorted(seen.values(), key=lambda entry: entry[0])[:_STARTS]
    for entry in starts:
        best = entry
        while (better := best_of(moved(best[1], space))) is not None and better[0] < best[0]:
            best = better
        if best[1].pipeline is None:
            best_of(knob_plans(space, best[1].batch.samples))
    return sorted(seen.values(), key=lambda entry: entry[0])


def search(asked: PredictedSearch) -> list[tuple[float, Plan]]:
    """As `--method descent`."""
    return descend(asked.space, asked.start, asked.judge, most=asked.evaluations)
