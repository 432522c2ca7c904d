"""Plans that place groups of ops, as a user has them predicted."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from autotune.jobs.planning.placements import explained, modules_of
from autotune.jobs.predict import make_predictors
from autotune.jobs.question import Question
from autotune.results.show.placement_console import show_placement
from autotune.results.store.record import BestPlan
from autotune.results.store.store import write_json
from autotune.workloads.plan import BatchPlan, Plan
from autotune.workloads.plan.op_groups import OpGroup, PlacementPlan
from tests.autotune.jobs.predictions import digits_graph, run


def question(tmp_path):
    return Question(workload="digits", clusters=("mixed4",), results=tmp_path, seed=0)


def test_simulate_predicts_a_plan_with_groups_of_ops(capsys, tmp_path):
    ops, path = len(digits_graph().ops), tmp_path / "placed.json"
    placement = PlacementPlan(
        groups=(
            OpGroup(ops=tuple(range(3)), ranks=(0, 1, 2, 3), samples=(24, 16, 16, 8)),
            OpGroup(ops=tuple(range(3, ops)), ranks=(0,), samples=(64,)),
        )
    )
    plan = Plan(batch=BatchPlan(samples=placement.most_samples(4)), placement=placement)
    best = BestPlan(
        workload="digits",
        workload_fingerprint="",
        cluster="mixed4",
        cluster_fingerprint="",
        plan=plan,
        step_s=1.0,
        speedup_over_default=None,
    )
    write_json(path, best)
    asked = ("simulate", "--workload", "digits", "--cluster", "mixed4", "--results", str(tmp_path), "--plan", str(path))
    code, out, _ = run(capsys, *asked, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["step_s"] > found["limit"]["compute_s"] > 0
    assert [rank["samples"] for rank in found["ranks"]] == [64, 16, 16, 8]
    code, out, _ = run(capsys, *asked)
    assert code == 0
    assert "2 groups on ranks 0+1+2+3 (24/16/16/8), 0 (64), 1 micro-batch" in out
    assert "with its ops placed anywhere" in out


def planned(capsys, tmp_path, *arguments):
    code, out, err = run(
        capsys, "plan", "--workload", "digits", "--results", str(tmp_path), "--simulations", "60", *arguments
    )
    assert code == 0, err
    return out


@pytest.mark.parametrize("cluster", ["slow-link4", "mixed4"])
def test_a_plan_is_never_worse_than_without_placements(cluster, capsys, tmp_path):
    asked = ("--cluster", cluster, "--json")
    without = json.loads(planned(capsys, tmp_path, *asked, "--placement", "off"))
    found = json.loads(planned(capsys, tmp_path, *asked, "--explain"))
    assert without["num_placements"] == 0
    assert 0 < found["num_placements"] <= 60
    assert found["forecast"]["step_s"] <= without["forecast"]["step_s"]


def test_a_placement_is_explained_module_by_module(capsys, tmp_path):
    predictor, *_ = make_predictors(question(tmp_path))
    placing = predictor.placing()
    names = [op.name for op in placing.simulator.graph.ops]
    half = len(names) // 2
    placement = PlacementPlan(
        groups=(
            OpGroup(ops=tuple(range(half)), ranks=(0, 1, 2, 3), samples=(24, 16, 16, 8)),
            OpGroup(ops=tuple(range(half, len(names))), ranks=(0,), samples=(64,)),
        )
    )
    plan = Plan(batch=BatchPlan(samples=placement.most_samples(4)), placement=placement)
    groups = explained(placing, plan)
    assert sum(group.compute_share for group in groups) == pytest.approx(1)
    assert {group.ranks for group in groups} == {(0, 1, 2, 3), (0,)}
    assert all(group.step_elsewhere_s > 0 for group in groups)
    console = Console(width=200, record=True, file=io.StringIO())
    show_placement(console, groups, placing.simulator.step_s(plan))
    assert "on all devices instead" in console.export_text()


def test_modules_are_named_by_the_largest_that_contain_nothing_else():
    names = ["stem", "blocks.0.a", "blocks.0.b", "blocks.1.a", "blocks.0", "head"]
    assert modules_of(["blocks.0.a", "blocks.0.b", "blocks.0", "head"], names) == ("blocks.0", "head")
    assert modules_of(["blocks.0.a", "blocks.1.a"], names) == ("blocks.0.a", "blocks.1")


def test_no_simulations_are_refused(capsys, tmp_path):
    code, _, err = run(
        capsys, "plan", "--workload", "digits", "--cluster", "mixed4", "--results", str(tmp_path), "--simulations", "0"
    )
    assert code == 2
    assert "--simulations 0: it must be at least 1" in err
