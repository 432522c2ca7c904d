"""Studies in a results folder: found by name, or the one written to last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.results.store.store import find_studies, write_json
from autotune.workloads.errors import SpecError
from tests.results import sample


def make_study(results: Path, study: str, cluster: str, changed_at: float) -> Path:
    folder = results / study / cluster
    folder.mkdir(parents=True)
    write_json(folder / "study.json", sample.info())
    os.utime(folder / "study.json", (changed_at, changed_at))
    return folder


def test_a_name_finds_the_study_on_every_cluster(tmp_path: Path) -> None:
    for study, cluster in (("vgg", "mixed4"), ("vgg", "uniform4"), ("mlp", "mixed4")):
        make_study(tmp_path, study, cluster, 1000.0)
    found = find_studies(tmp_path, "vgg")
    assert [store.folder for store in found] == [tmp_path / "vgg" / "mixed4", tmp_path / "vgg" / "uniform4"]


def test_without_a_name_the_study_written_to_last_is_found(tmp_path: Path) -> None:
    for study, changed_at in (("a", 1000.0), ("b", 3000.0), ("c", 2000.0)):
        make_study(tmp_path, study, "mixed4", changed_at)
    assert [store.folder.parent.name for store in find_studies(tmp_path)] == ["b"]
    records = tmp_path / "a" / "mixed4" / "records.jsonl"
    records.write_text("", encoding="utf-8")
    os.utime(records, (4000.0, 4000.0))
    assert [store.folder.parent.name for store in find_studies(tmp_path)] == ["a"]


def test_an_unknown_study_lists_what_there_is(tmp_path: Path) -> None:
    make_study(tmp_path, "vgg", "mixed4", 1000.0)
    make_study(tmp_path, "mlp", "mixed4", 1000.0)
    with pytest.raises(SpecError, match=r"no study called 'vgb' in .*: known: mlp, vgg"):
        find_studies(tmp_path, "vgb")


@pytest.mark.parametrize("name", [None, "vgg"])
def test_a_folder_without_studies_says_what_to_do(tmp_path: Path, name: str | None) -> None:
    with pytest.raises(
        SpecError, match=r"run `mpirun -n \d autotune sweep .*` first, or name another folder with --results"
    ):
        find_studies(tmp_path / "nowhere", name)


def test_kept_plans_are_not_taken_for_studies(tmp_path: Path) -> None:
    make_study(tmp_path, "vgg", "mixed4", 1000.0)
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "vgg@mixed4.json").write_text("{}", encoding="utf-8")
    assert [store.folder.parent.name for store in find_studies(tmp_path)] == ["vgg"]
