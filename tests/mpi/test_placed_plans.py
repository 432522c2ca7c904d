"""A plan that places groups of ops, trained from a file: the same losses as training by the whole batch on each rank."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.results.store.record import BestPlan
from autotune.results.store.store import write_json
from autotune.workloads.plan import BatchPlan, Plan
from autotune.workloads.plan.op_groups import OpGroup, PlacementPlan
from tests.mpi.launch import autotune
from tests.mpi.test_pipeline_plans import predictor_of


def write_placed(tmp_path: Path, workload: str, groups: tuple[OpGroup, ...], name: str) -> None:
    predictor = predictor_of(workload, "mixed4", 4, tmp_path)
    info, cluster = predictor.simulator.info, predictor.cluster
    placement = PlacementPlan(groups=groups, micro_batches=2)
    best = BestPlan(
        workload=info.name,
        workload_fingerprint=info.fingerprint,
        cluster=cluster.name,
        cluster_fingerprint=cluster.fingerprint(),
        plan=Plan(batch=BatchPlan(samples=placement.most_samples(4)), placement=placement),
        step_s=1.0,
        speedup_over_default=None,
    )
    write_json(tmp_path / name, best)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_groups_of_ops_train_as_the_whole_model(tmp_path: Path) -> None:
    predictor = predictor_of("gpt-tiny", "mixed4", 4, tmp_path)
    num_ops, total = len(predictor.simulator.graph.ops), predictor.total
    half, share = num_ops // 2, total // 4
    whole = OpGroup(ops=tuple(range(num_ops)), ranks=(0, 1, 2, 3), samples=(share,) * 4)
    first = OpGroup(ops=tuple(range(half)), ranks=(0, 1, 2), samples=(2 * share, share, share))
    second = OpGroup(ops=tuple(range(half, num_ops)), ranks=(1, 3), samples=(total - share // 2, share // 2))
    losses = []
    for name, groups in (("whole.json", (whole,)), ("placed.json", (first, second))):
        write_placed(tmp_path, "gpt-tiny", groups, name)
        arguments = ("--cluster", "mixed4", "--plan", name, "--steps", "4", "--rounds", "1", "--json")
        done = autotune(4, "train", "--workload", "gpt-tiny", *arguments, cwd=tmp_path)
        assert done.code == 0, done.err
        report = json.loads(done.out)
        losses.append(report["losses"])
        assert {part["rank"] for part in report["breakdown"]["ranks"]} == {0, 1, 2, 3}
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.mpi
@pytest.mark.slow
def test_groups_that_do_not_fit_the_model_are_one_message(tmp_path: Path) -> None:
    predictor = predictor_of("mlp-tiny", "mixed4", 4, tmp_path)
    ops = tuple(range(len(predictor.simulator.graph.ops)))
    group = OpGroup(ops=ops[1:], ranks=(0,), samples=(predictor.total,))
    for name, groups in (("few.json", (group,)), ("many.json", (replace(group, ops=(*ops, 99)),))):
        write_placed(tmp_path, "mlp-tiny", groups, name)
        done = autotune(4, "train", "--workload", "mlp-tiny", "--cluster", "mixed4", "--plan", name, cwd=tmp_path)
        assert done.code == 2
        assert done.err.count("autotune: error:") == 1
        assert "groups" in done.err
