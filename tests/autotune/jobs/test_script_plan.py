"""Which plan a training script runs by, and which it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.jobs.script_plan import check_made_for, check_script_plan, choose_plan
from autotune.results.store.record import BestPlan
from autotune.results.store.store import write_json
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, PipelinePlan, Plan

PLAN = Plan(batch=BatchPlan(samples=(12, 4)))
SHAPES = {"0.weight": "6x4", "0.bias": "6"}
CLUSTER = load_cluster("mixed4").for_ranks(2)


def kept(**changes: object) -> BestPlan:
    best = BestPlan(
        workload="own",
        workload_fingerprint="w",
        cluster=CLUSTER.name,
        cluster_fingerprint=CLUSTER.fingerprint(),
        plan=PLAN,
        step_s=1.0,
        speedup_over_default=None,
        parameters=SHAPES,
    )
    return replace(best, **changes)


def test_without_a_plan_ddp_divides_the_batch_evenly() -> None:
    plan, found = choose_plan(None, 9, 2)
    assert found is None
    assert plan.comm.reducer == "ddp"
    assert sorted(plan.batch.samples) == [4, 5]


def test_without_plan_and_batch_there_is_nothing_to_run_by() -> None:
    with pytest.raises(SpecError, match="neither a plan nor a batch"):
        choose_plan(None, None, 2)


def test_a_plan_for_other_ranks_says_how_to_start() -> None:
    with pytest.raises(SpecError, match=r"for 2 ranks, the job has 3: start `mpirun -n 2 python script\.py`"):
        choose_plan(PLAN, None, 3)


@pytest.mark.parametrize(("batch", "samples"), [(16, (12, 4)), (32, (24, 8)), (4, (3, 1)), (2, (1, 1))])
def test_another_batch_is_divided_in_the_plans_proportions(batch: int, samples: tuple[int, ...]) -> None:
    assert choose_plan(PLAN, batch, 2)[0].batch.samples == samples


@pytest.mark.parametrize("batch", [None, 16, 32])
def test_a_plan_that_leaves_a_rank_out_is_refused_and_not_divided_anew(batch: int | None) -> None:
    """Another batch would give that rank samples without a word."""
    left_out = replace(PLAN, batch=BatchPlan(samples=(16, 0)))
    with pytest.raises(SpecError, match=r"gives a rank no samples \(\[16, 0\]\).*start it on ranks 0 only"):
        choose_plan(left_out, batch, 2)


def test_a_file_comes_with_what_it_was_made_for(tmp_path: Path) -> None:
    write_json(tmp_path / "plan.json", kept())
    plan, found = choose_plan(tmp_path / "plan.json", None, 2)
    assert plan == PLAN
    assert found == kept()


def test_a_plan_made_for_this_model_and_cluster_is_taken() -> None:
    check_made_for(kept(), SHAPES, CLUSTER)
    check_made_for(kept(parameters={}, cluster_fingerprint=""), {"other": "1"}, CLUSTER)  # an older file says neither


def test_a_plan_for_another_model_is_refused_with_the_first_difference() -> None:
    with pytest.raises(SpecError, match=r"'0\.bias' is 6, and here it is 8.*force=True"):
        check_made_for(kept(), SHAPES | {"0.bias": "8"}, CLUSTER)
    with pytest.raises(SpecError, match=r"'1\.weight' is not there"):
        check_made_for(kept(), SHAPES | {"1.weight": "2x2"}, CLUSTER)


def test_a_plan_for_another_cluster_is_refused() -> None:
    with pytest.raises(SpecError, match="made on cluster 'mixed4-first2' and the job runs on 'uniform4-first2'"):
        check_made_for(kept(), SHAPES, load_cluster("uniform4").for_ranks(2))


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (replace(PLAN, compression=CompressionPlan(codec="fp16")), "codec 'fp16' changes what is computed"),
        (replace(PLAN, comm=CommPlan(reducer="averaged")), "reducer 'averaged' changes what is computed"),
    ],
)
def test_a_lossy_plan_is_taken_only_where_that_is_accepted(plan: Plan, text: str) -> None:
    with pytest.raises(SpecError, match=text):
        check_script_plan(plan, 2, allow_lossy=False)
    check_script_plan(plan, 2, allow_lossy=True)


def test_stages_and_ranks_without_samples_are_refused() -> None:
    staged = replace(PLAN, pipeline=PipelinePlan(first_ops=(0, 1), stage_ranks=((0,), (1,)), micro_batches=2))
    with pytest.raises(SpecError, match="pipeline stages"):
        check_script_plan(staged, 2, allow_lossy=False)
    with pytest.raises(SpecError, match="a rank no samples"):
        check_script_plan(replace(PLAN, batch=BatchPlan(samples=(16, 0))), 2, allow_lossy=False)


@pytest.mark.parametrize(("collective", "transport"), [("shards", "mpi"), ("server", "mpi")])
def test_messages_need_a_transport_that_carries_them(collective: str, transport: str) -> None:
    servers = (0,) if collective == "server" else ()
    plan = replace(PLAN, comm=CommPlan(transport=transport, collective=collective, servers=servers))
    with pytest.raises(SpecError, match="use transport gloo"):
        check_script_plan(plan, 2, allow_lossy=False)
