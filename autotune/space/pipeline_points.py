"""Coordinates of plans with pipeline stages: how many stages, micro-batches, which schedule, which of the cuts that were kept.

The plans themselves are found elsewhere (`stage_plans`) and few: a cut is only worth trying if it suits the devices. Here they get
names that a search can choose by; plans of one stage, which some searches predict, have none. Coordinates that no plan has lead to one that agrees with as many of them as can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autotune.workloads.plan import Plan
from autotune.workloads.stage_order import SCHEDULES

ONE_STAGE = "1"
"""No pipeline: every rank holds the whole model."""
CUTS = ("best", "second", "third")
"""Of the cuts for a number of stages and of micro-batches."""


@dataclass(frozen=True, kw_only=True)  # no slots: the derived tables are kept in the instance
class StagedPlans:
    """Plans with stages to choose from."""

    plans: tuple[Plan, ...] = ()

    @cached_property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Of each coordinate; none without plans. The first choice of stages is to have none."""
        points = [point for point in self.points.values() if point["stages"] != ONE_STAGE]
        if not points:
            return {}
        return {
            "stages": (ONE_STAGE, *_sorted({point["stages"] for point in points})),
            "micro_batches": _sorted({point["micro_batches"] for point in points}),
            "schedule": SCHEDULES,
            "cut": CUTS,
        }

    @cached_property
    def points(self) -> Mapping[Plan, dict[str, str]]:
        """The coordinates of each plan; cuts are counted in the order in which they come."""
        cuts: dict[tuple[int, int], dict[Any, int]] = {}
        found = {}
        for plan in self.plans:
            assert plan.pipeline is not None
            size, count = len(plan.pipeline.first_ops), plan.pipeline.micro_batches
            seen = cuts.setdefault((size, count), {})
            place = seen.setdefault(cut_of(plan), len(seen))
            cut = CUTS[min(place, len(CUTS) - 1)]
            found[plan] = {
                "stages": str(size),
                "micro_batches": str(count),
                "schedule": plan.pipeline.schedule,
                "cut": cut,
            }
        return found

    def point(self, plan: Plan) -> dict[str, str]:
        """Of a plan with or without stages."""
        known = self.points.get(plan)
        if known is not None and known["stages"] != ONE_STAGE:
            return known
        return {name: choices[0] for name, choices in self.choices.items()}

    def plan(self, params: Mapping[str, Any]) -> Plan | None:
        """The plan at these coordinates, or one near; None for one stage."""
        if not self.plans or params.get("stages", ONE_STAGE) == ONE_STAGE:
            return None
        names = ("stages", "micro_batches", "cut", "schedule")
        return max(self.plans, key=lambda plan: tuple(self.points[plan][name] == params.get(name) for name in names))


def cut_of(plan: Plan) -> tuple[Any, ...]:
    """All but the order."""
    assert plan.pipeline is not None
    return plan.batch, replace(plan.pipeline, schedule="1f1b", order=())


NO_STAGES = StagedPlans()


def _sorted(numbers: set[str]) -> tuple[str, ...]:
    return tuple(sorted(numbers, key=int))
