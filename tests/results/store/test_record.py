"""The limit: how close a plan comes to it, and which plans it does not bind."""

from __future__ import annotations

import pytest

from autotune.results.store.record import Limit
from autotune.workloads.plan import BatchPlan, PipelinePlan, Plan
from autotune.workloads.plan.op_groups import OpGroup, PlacementPlan

LIMIT = Limit(compute_s=0.1, network_s=0.06, path_s=0.01)
BATCH = BatchPlan(samples=(8, 8))


def test_a_data_parallel_plan_has_a_share_of_the_limit() -> None:
    assert LIMIT.share(Plan(batch=BATCH), 0.125) == pytest.approx(0.8)


def test_plans_whose_ranks_hold_parts_of_the_model_are_not_bound_by_it() -> None:
    """They exchange no gradients of what only one rank holds, and may be faster."""
    stages = PipelinePlan(first_ops=(0, 2), stage_ranks=((0,), (1,)), micro_batches=2)
    groups = PlacementPlan(groups=(OpGroup(ops=(0, 1), ranks=(0, 1), samples=(8, 8)),), micro_batches=2)
    assert LIMIT.share(Plan(batch=BATCH, pipeline=stages), 0.086) is None
    assert LIMIT.share(Plan(batch=BATCH, placement=groups), 0.086) is None
