"""Kept plans: found again by workload and mix, and refused for anything they were not made for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from results.best import all_best, best_path, check_made_for, load_best, save_best
from results.record import BestPlan
from tests.results import sample
from workloads.cluster import load_cluster
from workloads.errors import SpecError, StoreError

MIX = load_cluster("mixed4")
MADE_FOR = {"workload_fingerprint": "0123456789ab", "cluster_fingerprint": MIX.fingerprint(), "cluster": MIX.name}


def kept(workload: str = "vgg", cluster: str = "mixed4", step_s: float = 0.213) -> BestPlan:
    return BestPlan(
        workload=workload,
        workload_fingerprint="0123456789ab",
        cluster=cluster,
        cluster_fingerprint=MIX.fingerprint(),
        plan=sample.plan(),
        step_s=step_s,
        speedup_over_default=2.31,
        speedup_interval=(2.28, 2.35),
        study="vgg",
    )


def test_a_kept_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    path = save_best(tmp_path, kept())
    assert path == best_path(tmp_path, "vgg", "mixed4") == tmp_path / "best" / "vgg@mixed4.json"
    assert load_best(tmp_path, "vgg", "mixed4") == kept()


def test_a_users_own_workload_has_a_path_too(tmp_path: Path) -> None:
    path = save_best(tmp_path, kept("package.module:factory"))
    assert path.name == "package.module.factory@mixed4.json"
    assert load_best(tmp_path, "package.module:factory", "mixed4").workload == "package.module:factory"


def test_a_new_best_replaces_the_old_and_leaves_nothing_else(tmp_path: Path) -> None:
    save_best(tmp_path, kept(step_s=0.3))
    save_best(tmp_path, kept(step_s=0.2))
    assert load_best(tmp_path, "vgg", "mixed4").step_s == 0.2
    assert len(list((tmp_path / "best").iterdir())) == 1


def test_plans_of_other_workloads_and_mixes_are_kept_apart(tmp_path: Path) -> None:
    for workload in ("vgg", "mlp"):
        for cluster in ("mixed4", "uniform4"):
            save_best(tmp_path, kept(workload, cluster))
    found = [(plan.workload, plan.cluster) for _, plan in all_best(tmp_path)]
    assert found == [("mlp", "mixed4"), ("mlp", "uniform4"), ("vgg", "mixed4"), ("vgg", "uniform4")]


def test_a_folder_without_plans_has_none(tmp_path: Path) -> None:
    assert all_best(tmp_path) == []


def test_a_plan_that_is_not_kept_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="run `autotune sweep --workload vgg --cluster mixed4` first"):
        load_best(tmp_path, "vgg", "mixed4")


def test_a_damaged_plan_is_an_error_that_names_its_file(tmp_path: Path) -> None:
    save_best(tmp_path, kept()).write_text("{", encoding="utf-8")
    with pytest.raises(StoreError, match=r"vgg@mixed4\.json' is damaged"):
        load_best(tmp_path, "vgg", "mixed4")


def test_a_plan_is_taken_for_what_it_was_made_for() -> None:
    check_made_for(kept(), **MADE_FOR)


def test_a_plan_made_for_another_mix_is_refused() -> None:
    other = load_cluster("uniform4")
    with pytest.raises(SpecError) as caught:
        check_made_for(kept(), **MADE_FOR | {"cluster_fingerprint": other.fingerprint(), "cluster": other.name})
    message = str(caught.value)
    assert "the plan was made for cluster 'mixed4'" in message
    assert "but the job runs on 'uniform4'" in message
    assert "run `autotune sweep` on this one" in message


def test_a_plan_made_for_the_same_mix_with_other_speeds_is_refused() -> None:
    faster = dataclasses.replace(MIX.hosts[0].devices[0], flops_per_s=9e9)
    changed = dataclasses.replace(MIX, hosts=(dataclasses.replace(MIX.hosts[0], devices=(faster,)), *MIX.hosts[1:]))
    with pytest.raises(SpecError, match="made for cluster"):
        check_made_for(kept(), **MADE_FOR | {"cluster_fingerprint": changed.fingerprint()})


def test_a_plan_made_for_another_version_of_the_workload_is_refused() -> None:
    with pytest.raises(SpecError, match=r"another version of workload 'vgg' \(0123456789ab, now ba9876543210\)"):
        check_made_for(kept(), **MADE_FOR | {"workload_fingerprint": "ba9876543210"})
