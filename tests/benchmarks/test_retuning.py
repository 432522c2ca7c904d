"""The evaluation of the benchmarks on retuning, without running them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from autotune.online.features import CANDIDATE_FEATURES, WINDOW_FEATURES
from autotune.workloads.changes.scenario import ChangingCluster
from autotune.workloads.changes.scenario_file import load_scenario
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan
from tests.benchmarks import meta_lab, split_runs
from tests.benchmarks.adversarial import MISREPORTING, SCENARIOS, STEPS, Adversarial
from tests.benchmarks.drift import PARTS, UNCHANGED, Compared, DriftRun, best_first, chosen
from tests.benchmarks.meta_lab import LabWindow
from tests.benchmarks.split_runs import EVEN, RETUNED, Balance, Curve, Disturbed

PLAN = Plan(batch=BatchPlan(samples=(4, 4)))


def test_only_the_named_part_may_change() -> None:
    other = {
        "partition": replace(PLAN, comm=CommPlan(reducer="scheduled", partition_bytes=1000, crosses_steps=True)),
        "codec": replace(PLAN, compression=CompressionPlan(codec="fp16")),
        "collective": replace(PLAN, comm=CommPlan(collective="shards", shares=(0.25, 0.75))),
    }
    for name, parts in PARTS.items():
        assert parts.samples == (name in ("samples", "all"))
        assert parts.allow(PLAN, PLAN)
        for part, plan in other.items():
            assert parts.allow(plan, PLAN) == (name in (part, "all"))


def test_named_runs_are_chosen_or_all() -> None:
    assert chosen(["lab", "steady"], ("paced", "lab")) == ["lab"]
    assert chosen(["steady"], ("paced", "lab")) == ["paced", "lab"]


def test_parts_are_compared_with_the_plan_without_retuning() -> None:
    def run(step_s: float) -> tuple[DriftRun, ...]:
        return (DriftRun(steps_s=(9.0, 9.0, step_s, step_s), plan=PLAN, decisions=(), cpu_s=0.0),)

    compared = Compared(scenario="link-drop", changes=(1,), runs={UNCHANGED: run(2.0), "samples": run(1.6)})
    assert (
        compared.parts_summary() == "link-drop, relative to the plan without retuning: unchanged 1.000x, samples 1.250x"
    )


def test_the_best_static_plan_is_the_fastest_as_measured() -> None:
    def run(step_s: float) -> tuple[DriftRun, ...]:
        return (DriftRun(steps_s=(9.0, 9.0, step_s), plan=PLAN, decisions=(), cpu_s=0.0),)

    runs = {"best static": run(2.0), "best static, another configuration": run(1.0), "oracle": run(0.5)}
    assert best_first(runs) == {
        "best static": run(1.0),
        "best static, another configuration": run(2.0),
        "oracle": run(0.5),
    }


def test_imbalance_after_each_adjustment() -> None:
    splits = ((8, 8),) * 3 + ((12, 4),) * 3 + ((11, 5),) * 3
    found = Balance(
        command="",
        label="",
        workload="vgg",
        global_batch=16,
        splits=splits,
        compute_s=((1.0, 3.0),) * 3 + ((1.5, 1.0),) * 3 + ((1.2, 1.2),) * 3,
        steps_s=(3.0,) * 3 + (1.5,) * 3 + (1.25,) * 3,
        ideal_samples_per_s=16.0,
        least_imbalance=0.0,
    )
    assert found.adjustments == [3, 6]
    assert [found.after(count) for count in range(4)] == pytest.approx([0.5, 0.2, 0.0, 0.0])
    assert found.of_ideal == pytest.approx(0.8)


def test_disturbances_do_not_overlap_and_make_a_scenario(tmp_path: Path) -> None:
    found = split_runs.disturbances()
    assert len(found) >= 2
    assert all(later - earlier > 16 for (earlier, _), (later, _) in pairwise(found))
    split_runs.write_scenario(tmp_path / "disturbance.toml")
    cluster = ChangingCluster(load_cluster("mixed4"), load_scenario(str(tmp_path / "disturbance.toml")))
    step, rank = found[0]
    before, during, after = (cluster.at(at).devices[rank].flops_per_s for at in (step - 1, step, step + 16))
    assert before == after
    assert during == pytest.approx((before or 0.0) / 3, rel=1e-3)


def test_losses_are_compared_step_by_step_and_drawn() -> None:
    curves = {
        name: Curve(steps_s=(1.0,) * 4, losses=(4.0, 3.0, 2.0, last)) for name, last in ((EVEN, 1.0), (RETUNED, 0.9))
    }
    found = Disturbed(command="", label="emulated", disturbances=(), curves=curves)
    assert found.loss_difference == pytest.approx(0.1)
    assert split_runs.drawn(found).count("<polyline") == 4


@pytest.mark.parametrize("name", [name for name in STEPS if name != MISREPORTING])
def test_adversarial_scenarios_have_two_clusters(name: str) -> None:
    clusters = ChangingCluster(load_cluster("mixed4"), load_scenario(str(SCENARIOS / f"{name}.toml"))).course(
        [1.0] * STEPS[name]
    )
    assert len(set(clusters)) == 2


def test_retuning_is_compared_with_both_runs_of_the_static_plan() -> None:
    found = Adversarial(
        command="",
        label="",
        scenario=MISREPORTING,
        static_s=(9.0, 9.0, 1.0),
        static_again_s=(9.0, 9.0, 1.2),
        retuned_s=(9.0, 9.0, 1.0),
        decisions=(),
    )
    assert found.ratio == pytest.approx(1.1)
    assert found.noise == pytest.approx(1 / 1.2)


def test_predictions_are_graded_by_measured_times() -> None:
    draw = np.random.default_rng(0)
    window = LabWindow(
        running=0,
        default=1,
        plans=(PLAN,) * 3,
        window=tuple(draw.random(len(WINDOW_FEATURES))),
        rows=tuple(tuple(row) for row in draw.random((3, len(CANDIDATE_FEATURES)))),
        measured_s=(2.0, 4.0, 1.0),
        simulated_s=(2.0, 3.0, 1.0),
    )
    assert meta_lab.regret(window, 0) == pytest.approx(0.5)
    assert meta_lab.graded([window], [[0.0, -1.0, 1.0]]) == (pytest.approx(1.0), 0.0, 0.0)
    assert meta_lab.graded([window], [[0.0, 1.0, -1.0]])[1] == pytest.approx(0.75)
    assert len(window.predictions(meta_lab.MetaNetwork.shipped())) == 3
    assert "2 windows, 6 measured candidates" in meta_lab.table([window, replace(window, running=2)])
