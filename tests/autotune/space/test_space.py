"""The search space: every point is a plan that can run, and plans find their way back to points."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.results.store.record import StudyInfo
from autotune.search.local_search import knob_plans, moved
from autotune.space.comm_knobs import MIN_BUCKET_LOG2
from autotune.space.pipeline_points import StagedPlans
from autotune.space.space import Space, configurations, max_bucket_log2
from autotune.space.split_points import MAX_LOG_SHARE
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import (
    CODECS,
    COLLECTIVES,
    BatchPlan,
    CommPlan,
    CompressionPlan,
    KindCodec,
    PipelinePlan,
    Plan,
)
from autotune.workloads.serial import from_data, to_data
from autotune.workloads.split import Bounds, bounds, proportional
from autotune.workloads.workload import Loop
from tests.autotune.simulate.test_shipped_clusters import simulator_of
from tests.results import sample

MIXED4 = (1.0, 1 / 1.5, 1 / 2, 1 / 4)
STEADY = settings(derandomize=True, deadline=None)


def space(
    reference: tuple[float, ...] = MIXED4, *, limits: Bounds | None = None, global_batch: int = 64, **changes: Any
) -> Space:
    return Space(
        **{
            "global_batch": global_batch,
            "limits": limits or bounds(len(reference), global_batch),
            "reference": reference,
            "transports": ("gloo", "mpi"),
            "codecs": tuple(CODECS),
            "max_bucket_log2": 22,
        }
        | changes
    )


def random_point(chosen: Space, generator: random.Random) -> dict[str, Any]:
    point: dict[str, Any] = {}
    for name, values in chosen.coordinates().items():
        if values.choices:
            point[name] = generator.choice(values.choices)
        elif values.whole:
            point[name] = generator.randint(int(values.low), int(values.high))
        else:
            point[name] = generator.choice((values.low, values.high, generator.uniform(values.low, values.high)))
    return point


def test_every_random_point_is_a_plan_that_can_run() -> None:
    generator = random.Random(5)
    for _ in range(3000):
        num_ranks = generator.randint(1, 6)
        total = generator.randint(2 * num_ranks, 300)
        caps = [generator.randint(2, total) for _ in range(num_ranks)]
        caps[0] = total
        limits = bounds(num_ranks, total, minimum=generator.randint(0, 2), caps=caps)
        reference = tuple(generator.uniform(0.01, 1.0) for _ in range(num_ranks))
        chosen = space(reference, limits=limits, global_batch=total)
        plan = chosen.plan(random_point(chosen, generator))
        plan.validate(num_ranks=num_ranks, global_batch=total)
        samples = plan.batch.samples
        assert all(low <= n <= high for low, n, high in zip(limits.minimums, samples, limits.caps, strict=True))
        assert 2**MIN_BUCKET_LOG2 <= plan.comm.bucket_bytes <= 2**chosen.max_bucket_log2


SCHEDULES: dict[str, Any] = {
    "reducers": ("bucketed", "cross-step", "scheduled"),
    "collectives": ("ring", "shards"),
    "factors_for": lambda samples: ("fc1", "fc2") if min(samples) > 2 else ("fc1",),
    "kinds": ("Linear", "Conv2d"),
}


def test_knobs_of_schedules_make_plans_that_can_run_and_find_their_way_back() -> None:
    generator, chosen = random.Random(7), space(**SCHEDULES)
    seen = set()
    for _ in range(2000):
        plan = chosen.plan(random_point(chosen, generator))
        plan.validate(num_ranks=4, global_batch=64)
        plan.check_runnable()
        seen.add((plan.comm.reducer, plan.comm.collective, bool(plan.compression.factors), plan.comm.crosses_steps))
        again = chosen.plan(chosen.point(plan))
        assert (again.comm, again.compression.codecs) == (plan.comm, plan.compression.codecs)
        assert again.compression.by_kind == plan.compression.by_kind
    assert len(seen) == 10  # plain buckets send no factors


def test_a_kind_of_layers_may_be_compressed_alone_by_a_schedule() -> None:
    chosen = space(**SCHEDULES)
    knobs = {"bucket_log2": 20, "codec": "int8", "transport": "gloo", "reducer": "cross-step", "compressed": "Linear"}
    compression = chosen.with_knobs((30, 20, 10, 4), knobs).compression
    assert (compression.codec, compression.by_kind) == ("none", (KindCodec(kind="Linear", codec="int8"),))
    plain = knobs | {"codec": "none"}
    assert chosen.with_knobs((30, 20, 10, 4), plain).compression.by_kind == ()
    bucketed = knobs | {"codec": "bf16", "reducer": "bucketed"}
    assert chosen.with_knobs((30, 20, 10, 4), bucketed).compression == CompressionPlan(codec="bf16")


def test_nothing_is_compressed_alone_where_nothing_may_be_lost() -> None:
    assert "compressed" in list(space(**SCHEDULES).coordinates())
    assert "compressed" not in list(space(codecs=("none",), **SCHEDULES).coordinates())


def test_factors_follow_the_split() -> None:
    chosen = space(**SCHEDULES)
    knobs = {"bucket_log2": 20, "codec": "none", "transport": "mpi", "reducer": "cross-step", "factors": "yes"}
    assert chosen.with_knobs((30, 20, 10, 4), knobs).compression.factors == ("fc1", "fc2")
    assert chosen.with_knobs((30, 22, 10, 2), knobs).compression.factors == ("fc1",)
    assert chosen.with_knobs((30, 22, 10, 2), knobs).comm.transport == "gloo"  # factors are messages from rank to rank


def test_every_choice_of_knobs_is_tried_once_per_split() -> None:
    chosen = space(codecs=("none",), max_bucket_log2=17, **SCHEDULES)
    plans = knob_plans(chosen, (30, 20, 10, 4))
    assert len(set(plans)) == len(plans)
    assert {plan.comm.partition_bytes for plan in plans if plan.comm.reducer == "scheduled"} == {2**16, 2**17}
    for plan in plans:
        plan.validate(num_ranks=4, global_batch=64)


def test_one_rank_has_nothing_to_schedule() -> None:
    assert configurations(1, ("gloo",)) == {"reducers": ("bucketed",), "collectives": ("ring",)}
    assert configurations(4, ("nccl",))["reducers"] == ("bucketed",)
    assert "shards" in configurations(2, ("gloo", "mpi"))["collectives"]


@pytest.mark.parametrize(
    ("name", "has_groups"),
    [("two-hosts-of-two", True), ("two-beside-four", True), ("mixed4", False), ("this-machine-x4", False)],
)
def test_sums_within_hosts_are_proposed_where_hosts_have_several_ranks(name: str, has_groups: bool) -> None:
    cluster = load_cluster(name)
    collectives = configurations(len(cluster.devices), ("gloo",), cluster=cluster)["collectives"]
    assert ("hierarchical" in collectives) == ("hierarchical-shards" in collectives) == has_groups
    assert {"ring", "shards"} <= set(collectives)


def test_the_best_predicted_collective_of_such_a_cluster_sums_within_hosts() -> None:
    """Of all buckets, collectives and reducers around the devices' speeds, without a word about it."""
    simulator = simulator_of("vgg", "two-hosts-of-two")
    cluster = simulator.costs.cluster
    chosen = configurations(4, ("gloo",), cluster=cluster)
    plans = space(codecs=("none",), **chosen)
    found = [plans.with_knobs((21, 21, 11, 11), point) for point in plans.grid()]
    best = min(found, key=simulator.step_s)
    assert COLLECTIVES[best.comm.collective].sums_in_hosts
    ring = min((plan for plan in found if plan.comm.collective == "ring"), key=simulator.step_s)
    assert simulator.step_s(ring) > 1.2 * simulator.step_s(best)


def test_a_loop_that_clips_is_offered_no_steps_that_cross() -> None:
    """Clipping needs all gradients at once; a given plan with cross-step overlap is the scheduled one to a search."""
    assert "cross-step" in configurations(4, ("gloo",), Loop(accumulate=4, autocast="bfloat16"))["reducers"]
    generator = random.Random(3)
    chosen = space(**SCHEDULES | configurations(4, ("gloo",), Loop(clip_norm=1.0)))
    plans = [chosen.plan(random_point(chosen, generator)) for _ in range(500)]
    assert {plan.comm.reducer for plan in plans} == {"bucketed", "scheduled"}
    assert not any(plan.comm.crosses_steps for plan in (*plans, *knob_plans(chosen, (30, 20, 10, 4))))
    manually = Plan(batch=BatchPlan(samples=(16,) * 4), comm=CommPlan(reducer="scheduled", crosses_steps=True))
    assert chosen.point(manually)["reducer"] == "scheduled"


def test_no_log_share_is_the_proportional_split() -> None:
    level = {f"log_share.{rank}": 0.0 for rank in range(4)} | {"bucket_log2": 20, "codec": "none", "transport": "gloo"}
    assert space().plan(level).batch.samples == proportional(MIXED4, 64, bounds(4, 64))


def test_a_log_share_of_one_half_is_worth_the_square_root_of_two() -> None:
    point = {"log_share.0": 0.5, "log_share.1": -0.5, "bucket_log2": 20, "codec": "none", "transport": "gloo"}
    assert space((1.0, 1.0), global_batch=30).plan(point).batch.samples == (20, 10)


def test_a_point_becomes_the_knobs_it_names() -> None:
    plan = space((1.0,)).plan({"bucket_log2": 18, "codec": "bf16", "transport": "mpi"})
    assert plan.comm == CommPlan(reducer="bucketed", transport="mpi", bucket_bytes=2**18)
    assert plan.compression.codec == "bf16"
    assert plan.batch.samples == (64,)


def test_a_job_of_one_rank_has_no_log_share_to_search() -> None:
    assert list(space((1.0,)).coordinates()) == ["bucket_log2", "codec", "transport"]


def test_every_rank_of_several_has_its_log_share() -> None:
    names = list(space().coordinates())
    assert names == ["log_share.0", "log_share.1", "log_share.2", "log_share.3", "bucket_log2", "codec", "transport"]


# --- and back ----------------------------------------------------------------------------------------------------------

REST = {"bucket_log2": 20, "codec": "none", "transport": "gloo"}


def again(chosen: Space, samples: tuple[int, ...]) -> tuple[int, ...]:
    """The split at the coordinates of a split."""
    return chosen.plan(chosen.split_point(samples) | REST).batch.samples


@STEADY
@given(
    log_shares=st.lists(st.floats(-MAX_LOG_SHARE, MAX_LOG_SHARE), min_size=2, max_size=5),
    speeds=st.lists(st.floats(0.1, 1.0), min_size=5, max_size=5),
    total=st.integers(20, 400),
)
def test_a_split_within_reach_comes_back_from_its_coordinates(
    log_shares: list[float], speeds: list[float], total: int
) -> None:
    """The split of any point has coordinates of its own that lead to it (unless rounding has moved it out of reach)."""
    reference = tuple(speeds[: len(log_shares)])
    chosen = space(reference, global_batch=total)
    samples = chosen.plan(
        {f"log_share.{rank}": log_share for rank, log_share in enumerate(log_shares)} | REST
    ).batch.samples
    spread = [count / speed for count, speed in zip(samples, reference, strict=True)]
    if max(spread) <= 2 ** (2 * MAX_LOG_SHARE) * min(spread):
        assert again(chosen, samples) == samples


@pytest.mark.parametrize("samples", [(27, 18, 13, 6), (26, 18, 13, 7), (30, 16, 12, 6), (24, 20, 12, 8)])
def test_the_splits_that_matter_on_mixed4_are_within_reach(samples: tuple[int, ...]) -> None:
    assert again(space(), samples) == samples


def test_coordinates_stay_inside_their_knobs_also_for_a_split_out_of_reach() -> None:
    generator = random.Random(6)
    for _ in range(300):
        cut = sorted(generator.sample(range(1, 64), 3))
        samples = (cut[0], cut[1] - cut[0], cut[2] - cut[1], 64 - cut[2])
        log_shares = space().split_point(samples)
        assert list(log_shares) == [name for name in space().coordinates() if name.startswith("log_share.")]
        assert all(-MAX_LOG_SHARE <= log_share <= MAX_LOG_SHARE for log_share in log_shares.values())


def test_a_split_out_of_reach_leads_to_one_that_leans_the_same_way() -> None:
    assert again(space((1.0, 1.0)), (60, 4)) == (43, 21)  # 64 · 2/3: the log share ratios reach a ratio of two


def test_a_rank_without_samples_has_coordinates_too() -> None:
    assert sum(again(space(), (32, 32, 0, 0))) == 64


def test_a_job_of_one_rank_has_no_coordinates() -> None:
    assert space((1.0,)).split_point((64,)) == {}


# --- identity ----------------------------------------------------------------------------------------------------------


def test_the_measured_reference_does_not_make_another_space() -> None:
    assert space(MIXED4).describe() == space((1.0, 0.7, 0.4, 0.3)).describe()


@pytest.mark.parametrize(
    "changes",
    [
        {"global_batch": 65},
        {"limits": bounds(4, 64, minimum=2)},
        {"transports": ("gloo",)},
        {"codecs": ("none",)},
        {"max_bucket_log2": 23},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_everything_else_makes_another_space(changes: dict[str, Any]) -> None:
    assert dataclasses.replace(space(), **changes).describe() != space().describe()


def test_a_description_is_the_same_after_it_was_kept_in_a_study() -> None:
    info = dataclasses.replace(sample.info(), space=space().describe() | {"sampler": "tpe"})
    again = from_data(StudyInfo, json.loads(json.dumps(to_data(info))), "study.json")
    assert again.space == space().describe() | {"sampler": "tpe"}


@pytest.mark.parametrize(
    ("param_bytes", "log2"),
    [(0, MIN_BUCKET_LOG2), (1000, MIN_BUCKET_LOG2), (2**20, 20), (2**20 + 1, 21), (38 * 2**20, 26)],
)
def test_the_largest_bucket_holds_every_gradient_and_no_more(param_bytes: int, log2: int) -> None:
    assert max_bucket_log2(param_bytes) == log2


def stages(schedule: str, cut: int, count: int = 4) -> Plan:
    pipeline = PipelinePlan(first_ops=(0, cut), stage_ranks=((0,), (1,)), micro_batches=count, schedule=schedule)
    return Plan(batch=BatchPlan(samples=(64, 64, 0, 0)), pipeline=pipeline)


def test_plans_with_stages_are_points_beside_those_without() -> None:
    offered = (stages("1f1b", 3), stages("gpipe", 3), stages("1f1b", 5), stages("1f1b", 3, 8))
    chosen, generator = space(staged=StagedPlans(plans=offered), **SCHEDULES), random.Random(3)
    assert set(offered) <= set(knob_plans(chosen, (16,) * 4))
    for plan in offered:
        assert chosen.plan(chosen.point(plan)) == plan
    seen = {chosen.plan(random_point(chosen, generator)) for _ in range(500)}
    assert seen >= set(offered)
    assert any(plan.pipeline is None for plan in seen)
    for plan in seen:
        plan.validate(num_ranks=4, global_batch=64)
    assert chosen.describe()["stages"] == ["1", "2"]
    assert "stages" not in space().describe()
    assert moved(offered[0], chosen) == []
