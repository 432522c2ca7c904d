"""Two interleaved revisions: a slower one is found, an equal one is not, and one that cannot run is one message."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from autotune.results.judge.series import Runs
from autotune.results.store.store import read_json
from autotune.workloads.errors import SpecError
from tests.benchmarks import revisions
from tests.mpi.launch import ROOT

PAIR = str(ROOT / "tests" / "benchmarks" / "clusters" / "pair.toml")
PACKAGES = ("autotune", "profilers", "results", "workloads")
BUDGET = ("vgg-tiny", PAIR, "--rounds", "12", "--steps", "6")


def copy_of_the_packages(folder: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "data", "published")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    return folder


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    """The working tree with a pause of 3 ms in every step of 30."""
    folder = copy_of_the_packages(tmp_path / "slower")
    trainer = folder / "autotune" / "runtime" / "train" / "trainer.py"
    text = trainer.read_text()
    changed = text.replace("self.optimizer.step()\n", "self.optimizer.step(); time.sleep(0.003)\n", 1)
    assert changed != text
    trainer.write_text(changed)
    return folder


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_slower_revision_is_exit_4(slower: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = revisions.main([str(ROOT), str(slower), *BUDGET, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 4, document
    assert document["in_one_job"]
    assert document["rows"][0]["ratio"]["value"] == pytest.approx(0.91, abs=0.05)
    (kept,) = (results / "compare").glob("*.json")
    assert len(read_json(Runs, kept).runs) == 24


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_revision_against_itself_is_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    code = revisions.main([str(ROOT), str(ROOT), *BUDGET])
    shown = capsys.readouterr().out
    assert code == 0, shown
    assert "interleaved within one job" in shown


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_revision_that_cannot_run_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = copy_of_the_packages(tmp_path / "broken")
    (broken / "autotune" / "jobs" / "context.py").write_text("raise RuntimeError('half written')\n")
    assert revisions.main([str(ROOT), str(broken), *BUDGET]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "half written" in output.err
    assert f"{broken} ended early" in output.err


def test_an_unknown_revision_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert revisions.main(["no-such-revision", str(ROOT), *BUDGET]) == 2
    assert "no revision 'no-such-revision'" in capsys.readouterr().err


def test_a_folder_without_the_packages_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert revisions.main([str(tmp_path), str(ROOT), *BUDGET]) == 2
    assert "does not hold the packages" in capsys.readouterr().err


def test_a_revision_is_taken_from_git_without_touching_the_repository(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    before = subprocess.run(["git", "worktree", "list"], cwd=ROOT, check=True, capture_output=True).stdout
    folder = revisions.check_out("HEAD", tmp_path / "head")
    assert (folder / "autotune" / "jobs" / "context.py").exists()
    assert subprocess.run(["git", "worktree", "list"], cwd=ROOT, check=True, capture_output=True).stdout == before


def test_both_jobs_get_the_same_cluster_file() -> None:
    options = revisions.parse(["a", "b"])
    cluster, arguments = revisions._job_arguments(options)
    assert arguments == ["vgg", str(ROOT / "workloads" / "clusters" / "mixed4.toml")]
    assert len(cluster.devices) == 4


def test_a_cluster_of_any_size_runs_on_two_ranks() -> None:
    options: argparse.Namespace = revisions.parse(["a", "b", "vgg", "this-machine"])
    assert len(revisions._job_arguments(options)[0].devices) == 2


def test_an_unknown_cluster_is_refused() -> None:
    with pytest.raises(SpecError, match="did you mean 'mixed4'"):
        revisions._job_arguments(revisions.parse(["a", "b", "vgg", "mixd4"]))


class ScriptedJob:
    """Returns blocks with its own name, and records the calls."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log

    def block(self, steps: int) -> dict[str, object]:
        self._log.append(self.name)
        return {"steps_s": [float(len(self._log))] * steps, "cpu_s": 0.1, "reason": ""}


def test_turns_alternate_in_random_order_and_the_first_round_does_not_count() -> None:
    log: list[str] = []
    answers = revisions.take_turns([ScriptedJob("a", log), ScriptedJob("b", log)], 8, 3, seed=0)  # type: ignore[list-item]
    rounds = [tuple(log[start : start + 2]) for start in range(0, len(log), 2)]
    assert len(rounds) == 9
    assert set(rounds) == {("a", "b"), ("b", "a")}
    assert [len(blocks) for blocks in answers] == [8, 8]
    assert min(block["steps_s"][0] for blocks in answers for block in blocks) > 2
