"""Kept plans: found again by workload and cluster, and refused for anything they were not made for."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from autotune.results.store.best import all_best, best_path, better_kept, check_made_for, load_best, matching, save_best
from autotune.results.store.record import BestPlan
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import SpecError, StoreError
from tests.results import sample

MIXED4 = load_cluster("mixed4")
MADE_FOR = {"workload_fingerprint": "0123456789ab", "cluster_fingerprint": MIXED4.fingerprint(), "cluster": MIXED4.name}


def kept(workload: str = "vgg", cluster: str = "mixed4", step_s: float = 0.213) -> BestPlan:
    return BestPlan(
        workload=workload,
        workload_fingerprint="0123456789ab",
        cluster=cluster,
        cluster_fingerprint=MIXED4.fingerprint(),
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


def test_a_plan_that_gains_more_is_not_replaced_by_that_of_a_side_study(tmp_path: Path) -> None:
    side = dataclasses.replace(kept(), study="one-trial", speedup_over_default=1.0, speedup_interval=(0.99, 1.01))
    assert better_kept(tmp_path, side) is None, "nothing is kept yet"
    save_best(tmp_path, kept())
    assert better_kept(tmp_path, side) == kept()
    within_noise = dataclasses.replace(side, speedup_over_default=2.3, speedup_interval=(2.25, 2.33))
    assert better_kept(tmp_path, within_noise) is None
    assert better_kept(tmp_path, dataclasses.replace(side, study="vgg")) is None, "a study replaces its own plan"
    assert better_kept(tmp_path, dataclasses.replace(side, cluster_fingerprint="other")) is None
    assert better_kept(tmp_path, dataclasses.replace(side, speedup_interval=())) is None


def test_plans_of_other_workloads_and_clusters_are_kept_apart(tmp_path: Path) -> None:
    for workload in ("vgg", "mlp"):
        for cluster in ("mixed4", "uniform4"):
            save_best(tmp_path, kept(workload, cluster))
    found = [(plan.workload, plan.cluster) for _, plan in all_best(tmp_path)]
    assert found == [("mlp", "mixed4"), ("mlp", "uniform4"), ("vgg", "mixed4"), ("vgg", "uniform4")]


def test_a_folder_without_plans_has_none(tmp_path: Path) -> None:
    assert all_best(tmp_path) == []


def test_a_plan_that_is_not_kept_says_how_to_get_it(tmp_path: Path) -> None:
    where = f"--results {tmp_path}"
    for given, words in {
        ("vgg", "mixed4"): "mpirun -n 4 autotune sweep --workload vgg --cluster mixed4",
        (
            "vgg,lr=0.1",
            "mixed4-first2",
        ): "mpirun -n 2 autotune sweep --workload vgg --set lr=0.1 --cluster mixed4-first2",
    }.items():
        with pytest.raises(SpecError, match=re.escape(f"run `{words} {where}` first")):
            load_best(tmp_path, *given)
    with pytest.raises(SpecError, match="run `mpirun -n 3 this` first"):
        load_best(tmp_path, "vgg", "mixed4", sweep="mpirun -n 3 this")


def test_a_damaged_plan_is_an_error_that_names_its_file(tmp_path: Path) -> None:
    save_best(tmp_path, kept()).write_text("{", encoding="utf-8")
    with pytest.raises(StoreError, match=r"vgg@mixed4\.json' is damaged"):
        load_best(tmp_path, "vgg", "mixed4")


def test_a_plan_is_taken_for_what_it_was_made_for() -> None:
    check_made_for(kept(), **MADE_FOR)


def test_a_plan_made_for_another_cluster_is_refused() -> None:
    other = load_cluster("uniform4")
    with pytest.raises(SpecError) as caught:
        check_made_for(kept(), **MADE_FOR | {"cluster_fingerprint": other.fingerprint(), "cluster": other.name})
    message = str(caught.value)
    assert "the plan was made for cluster 'mixed4'" in message
    assert "but the job runs on 'uniform4'" in message
    assert "run `autotune sweep`, or name the cluster it was made for" in message


def test_a_plan_made_for_the_same_cluster_with_other_speeds_is_refused() -> None:
    faster = dataclasses.replace(MIXED4.hosts[0].devices[0], flops_per_s=9e9)
    changed = dataclasses.replace(
        MIXED4, hosts=(dataclasses.replace(MIXED4.hosts[0], devices=(faster,)), *MIXED4.hosts[1:])
    )
    with pytest.raises(SpecError, match=f"made for cluster.*`autotune sweep --study vgg-{changed.fingerprint()}`"):
        check_made_for(kept(), **MADE_FOR | {"cluster_fingerprint": changed.fingerprint()})


def test_a_plan_made_for_another_version_of_the_workload_is_refused() -> None:
    with pytest.raises(SpecError, match=r"another version of workload 'vgg' \(0123456789ab, now ba9876543210\)"):
        check_made_for(kept(), **MADE_FOR | {"workload_fingerprint": "ba9876543210"})


KEPT = [
    ("vgg", "mixed4"),
    ("vgg,lr=0.1", "mixed4-first2"),
    ("vgg,lr=0.1", "uniform4"),
    ("jobs:mine,a=1,b=2", "lab-first3"),
]


@pytest.mark.parametrize(
    ("workload", "cluster", "found"),
    [
        (None, None, [0, 1, 2, 3]),
        ("vgg", None, [0]),
        ("vgg,lr=0.1", None, [1, 2]),
        ("jobs:mine", None, [3]),
        ("jobs:mine,b=2,a=1", None, [3]),
        (None, "mixed4", [0]),
        (None, "mixed4-first2", [1]),
        ("vgg,lr=0.1", "mixed4", [1]),
        (None, "lab", [3]),
        ("mlp", None, []),
        (None, "mixed", []),
    ],
)
def test_plans_are_found_by_the_names_of_files_and_of_users(
    workload: str | None, cluster: str | None, found: list[int]
) -> None:
    plans = [(Path(str(index)), kept(*names)) for index, names in enumerate(KEPT)]
    assert [int(path.name) for path, _ in matching(plans, workload, cluster)] == found


def test_plans_are_found_by_the_file_of_their_cluster(tmp_path: Path) -> None:
    path = tmp_path / "any.toml"
    path.write_text('name = "lab"\n[device.a]\n[[host]]\ndevices = ["a", "a"]\n', encoding="utf-8")
    assert matching([(path, kept("vgg", "lab-first1"))], None, str(path))
