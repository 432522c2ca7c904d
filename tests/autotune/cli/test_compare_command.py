"""`autotune compare A B`: exit code 0, 4 on a regression, 2 with one message; one JSON document with --json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main as cli
from autotune.results.store.record import Comparison
from autotune.results.store.store import write_json
from tests.autotune.cli.test_main import RUN_AND_LIST_HEAVY, make_study, run
from tests.results import sample


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Comparisons as they were, with the best plan 10 % slower, and 10 % faster."""
    found = {
        "same": sample.comparison(),
        "slower": sample.comparison(best_s=0.234),
        "faster": sample.comparison(best_s=0.19),
    }
    return {name: _kept(tmp_path / f"{name}.json", comparison) for name, comparison in found.items()}


def _kept(path: Path, comparison: Comparison) -> str:
    write_json(path, comparison)
    return str(path)


@pytest.mark.parametrize(("after", "code"), [("same", 0), ("slower", 4), ("faster", 0)])
def test_the_exit_code_is_4_on_a_regression_only(files: dict[str, str], after: str, code: int) -> None:
    assert cli.main(["compare", files["same"], files[after]]) == code


def test_a_regression_is_shown(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["compare", files["same"], files["slower"]])
    shown = capsys.readouterr().out
    assert "1 worse (of 7 compared)" in shown
    assert "different jobs" in shown


def test_json_is_one_document(files: dict[str, str]) -> None:
    done = run("compare", files["same"], files["slower"], "--json")
    assert (done.returncode, done.stderr) == (4, "")
    document: dict[str, Any] = json.loads(done.stdout)
    rows = {row["name"]: row for row in document["rows"]}
    assert rows["best plan"]["verdict"] == "worse"
    assert rows["best plan"]["ratio"]["high"] < 1
    assert rows["DDP default"]["verdict"] == "no difference"
    assert document["confidence"] == 0.995


def test_studies_are_found_by_name(tmp_path: Path, files: dict[str, str]) -> None:
    make_study(tmp_path, "monday")
    assert cli.main(["compare", "monday", files["slower"], "--results", str(tmp_path)]) == 4
    assert cli.main(["compare", "monday", "monday", "--results", str(tmp_path)]) == 0


@pytest.mark.parametrize("text", ["", "{", '{"name": "left-pad"}', "[]"])
def test_a_file_that_cannot_be_read_is_exit_2_and_one_message(files: dict[str, str], tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text, encoding="utf-8")
    for arguments in ((files["same"], str(tmp_path / "bad.json")), (str(tmp_path / "bad.json"), files["same"])):
        done = run("compare", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("autotune: error: ")
        assert len(done.stderr.splitlines()) == 1
        assert "bad.json" in done.stderr


def test_compare_loads_neither_torch_nor_mpi_nor_optuna(files: dict[str, str]) -> None:
    done = run("compare", files["same"], files["same"], code=RUN_AND_LIST_HEAVY)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "LOADED "


def test_studies_whose_name_has_a_dot_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user's workload has one in its study's name; a folder of that name in the working directory is no study."""
    monkeypatch.chdir(tmp_path)
    for name in ("jobs.mine,lr=0.1", "jobs.mine"):
        make_study(tmp_path / "r", name)
    (tmp_path / "jobs.mine").mkdir()
    assert cli.main(["compare", "jobs.mine,lr=0.1", "jobs.mine", "--results", "r"]) == 0
    assert "jobs.mine,lr=0.1 -> jobs.mine" in capsys.readouterr().out
    assert cli.main(["compare", "jobs.other", "jobs.mine", "--results", "r"]) == 2
    assert "no file 'jobs.other' that can be compared" in capsys.readouterr().err
