"""Samples moved between the ranks of a placement while the prediction improves.

A set of devices shares the batch as its devices are fast. A rank that computes other groups besides should take fewer samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotune.placement.groups.problem import PlacementProblem, Value
from autotune.workloads.plan import Plan
from autotune.workloads.plan.op_groups import OpGroup

_PARTS = (2, 4, 8)
"""Of a rank's samples, to move at once."""


def better_shares(problem: PlacementProblem, plan: Plan, value: Value) -> tuple[Value, Plan]:
    """As good or better, with the simulations that are left."""
    moved = True
    while moved and not problem.is_spent:
        moved = False
        for tried in _near(plan, problem.simulator.outcome(plan).busy_s.tolist()):
            if problem.is_spent:
                break
            found = problem.judge_plan(tried)
            if found < value:
                value, plan, moved = found, tried, True
                break
    return value, plan


def _near(plan: Plan, busy_s: Sequence[float]) -> Iterator[Plan]:
    """From the busiest rank of a group to the least busy one."""
    placement = plan.placement
    assert placement is not None
    for part in _PARTS:
        for number, group in enumerate(placement.groups):
            order = sorted(range(len(group.ranks)), key=lambda place: busy_s[group.ranks[place]])
            giver, taker = order[-1], order[0]
            micro = group.samples[giver] // placement.micro_batches
            count = max(micro // part, 1) * placement.micro_batches
            if len(order) > 1 and group.samples[giver] > count:
                groups = list(placement.groups)
                groups[number] = _moved(group, giver, taker, count)
                changed = replace(placement, groups=tuple(groups))
                batch = replace(plan.batch, samples=changed.most_samples(len(plan.batch.samples)))
                yield replace(plan, batch=batch, placement=changed)


def _moved(group: OpGroup, giver: int, taker: int, count: int) -> OpGroup:
    samples = list(group.samples)
    samples[giver] -= count
    samples[taker] += count
    return replace(group, samples=tuple(samples))
