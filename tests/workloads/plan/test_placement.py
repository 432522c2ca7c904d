"""Replicas of stages in a plan: groups of unlike sizes, shares, refusals, and files and fingerprints of earlier plans."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autotune.workloads.errors import SpecError
from autotune.workloads.plan import BatchPlan, PipelinePlan, Plan
from autotune.workloads.serial import from_data, to_data


def plan(samples, **pipeline):
    return Plan(batch=BatchPlan(samples=samples), pipeline=PipelinePlan(**pipeline))


MIXED = {"first_ops": (0, 3), "stage_ranks": ((0, 1, 2), (3, 4)), "group_sizes": ((2, 1), (1, 1)), "micro_batches": 4}


def test_replicas_have_groups_shares_and_passes():
    pipeline = PipelinePlan(**MIXED)
    first, second = pipeline.replicas((8, 8, 4, 6, 6))
    assert [(one.ranks, one.degree, one.samples) for one in first] == [((0, 1), 2, 8), ((2,), 1, 4)]
    assert [one.samples for one in second] == [6, 6]
    assert len(first[1].passes) == 8
    assert PipelinePlan(first_ops=(0,), stage_ranks=((0, 1, 2, 3),), micro_batches=1, tensor_parallel=2).groups() == (
        ((0, 1), (2, 3)),
    )


def test_round_robin_deals_whole_micro_batches():
    dealt = plan((12, 4, 8, 8), first_ops=(0, 1), stage_ranks=((0, 1), (2, 3)), micro_batches=4, sharing="round-robin")
    dealt.validate(num_ranks=4, global_batch=16)
    assert dealt.global_batch == 16
    first, second = dealt.pipeline.replicas(dealt.batch.samples)
    assert [len(one.passes) for one in (*first, *second)] == [6, 2, 4, 4]
    assert dealt.pipeline.micro_samples(dealt.batch.samples) == (4.0, 4.0, 4.0, 4.0)
    with pytest.raises(SpecError, match="sharing is 'round-robin'"):
        dealt.check_runnable()
    uneven = replace(dealt, batch=BatchPlan(samples=(10, 6, 8, 8)))
    with pytest.raises(SpecError, match="at least one whole one"):
        uneven.validate(num_ranks=4, global_batch=16)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"group_sizes": ((2, 2), (1, 1))}, "which sum to its ranks"),
        ({"group_sizes": ((2, 1),)}, "which sum to its ranks"),
        ({"group_sizes": ((3, 0), (1, 1))}, "which sum to its ranks"),
        ({"sharing": "some"}, "split, round-robin"),
    ],
)
def test_replicas_that_cannot_be_are_refused(changes, said):
    with pytest.raises(SpecError, match=said):
        plan((8, 8, 4, 6, 6), **(MIXED | changes)).validate(num_ranks=5, global_batch=12)


def test_groups_of_several_ranks_are_predicted_only():
    mixed = plan((8, 8, 4, 8, 4), **MIXED)
    mixed.validate(num_ranks=5, global_batch=12)
    with pytest.raises(SpecError, match="tensor_parallel is 2"):
        mixed.check_runnable()


def test_plans_of_earlier_versions_keep_file_and_fingerprint():
    """As written before replicas had sizes and a sharing."""
    old = plan((8, 8), first_ops=(0, 2), stage_ranks=((0,), (1,)), micro_batches=2)
    data = json.loads(json.dumps(to_data(old)))
    for name in ("group_sizes", "sharing"):
        del data["pipeline"][name]
    assert from_data(Plan, data, "file") == old
    assert old.fingerprint() == "bdcf049021e0"
    assert replace(old, pipeline=replace(old.pipeline, sharing="round-robin")).fingerprint() != old.fingerprint()
    back = plan((8, 8, 4, 8, 4), **MIXED)
    assert from_data(Plan, json.loads(json.dumps(to_data(back))), "file") == back
