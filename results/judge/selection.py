"""Which of the trials count: the fastest plans, the default, the plans to measure once more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from autotune.results.store.record import Role, TrialRecord
from autotune.workloads.plan import Plan

_CLOSE = 0.02


def fastest(records: Sequence[TrialRecord], *roles: Role) -> TrialRecord | None:
    """A trial of the fastest plan among those of these roles (of all, if none is named)."""
    return next(iter(by_speed(records, *roles)), None)


def by_speed(records: Sequence[TrialRecord], *roles: Role) -> list[TrialRecord]:
    """The first trial of each plan that ran, fastest plan first, by the mean over all steps of all its trials.

    The mean, because it is what training takes: a plan that is quick in most steps and stumbles in some must not win.
    Plans that noise cannot separate from the fastest, and that are close to it, go by the CPU time they use, which is a
    steadier measure: on cores that ranks share, the plan that uses less of them is the faster one more often than not.
    """
    trials: dict[Plan, list[TrialRecord]] = {}
    for record in records:
        if record.step_s is not None and (not roles or record.role in roles):
            trials.setdefault(record.plan, []).append(record)
    means = {plan: _mean_and_error(same) for plan, same in trials.items()}
    if not means:
        return []
    best_s, best_error_s = min(means.values())
    tied = {
        plan
        for plan, (mean_s, error_s) in means.items()
        if mean_s - best_s <= min(math.hypot(error_s, best_error_s), _CLOSE * best_s)
    }

    def place(plan: Plan) -> tuple[bool, float]:
        own = fmean(record.cpu_s_per_step for record in trials[plan])
        return (False, own) if plan in tied else (True, means[plan][0])

    return [trials[plan][0] for plan in sorted(trials, key=place)]


def _mean_and_error(same: Sequence[TrialRecord]) -> tuple[float, float]:
    """Mean step of a plan over all its trials, and its standard error."""
    steps = [step for record in same for step in record.steps_s]
    return fmean(steps), stdev(steps) / math.sqrt(len(steps)) if len(steps) > 1 else 0.0


def default_record(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """The trial of torch DDP with its defaults: the first that could be measured, else the last that could not."""
    found = [record for record in records if record.role is Role.DEFAULT]
    return next((record for record in found if record.step_s is not None), found[-1] if found else None)
