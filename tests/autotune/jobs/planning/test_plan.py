"""Plans that place groups of ops, as a user has them predicted."""

from __future__ import annotations

import json

from autotune.results.store.record import BestPlan
from autotune.results.store.store import write_json
from autotune.workloads.plan import BatchPlan, Plan
from autotune.workloads.plan.op_groups import OpGroup, PlacementPlan
from tests.autotune.jobs.predictions import digits_graph, run


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
