"""The cores of this process: read, restricted and given back on the real kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autotune.runtime.launch.cores import _listed, bind, is_one_core, own_cores
from autotune.runtime.launch.launcher import Launcher, LauncherKind

MPIRUN = Launcher(kind=LauncherKind.OPEN_MPI, rank=0, size=2, speaks_mpi=True)
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two cores"
)

BOUND = """
import os
from autotune.runtime.launch.cores import own_cores
from autotune.runtime.launch.launcher import Launcher
found = own_cores(Launcher(), "a", {})
print(found.own, found.launcher, found.is_one_core, found.asked)
"""


def test_a_bound_process_finds_the_cores_of_its_launcher(tmp_path: Path) -> None:
    """The launcher is a process of that name; between it and the rank stands one that is bound as well."""
    everything = tuple(sorted(os.sched_getaffinity(0)))
    first = everything[0]
    (tmp_path / "rank.py").write_text(BOUND)
    shell = (
        f"import os, subprocess, sys; os.sched_setaffinity(0, [{first}]); subprocess.run([sys.executable, 'rank.py'])"
    )
    (tmp_path / "bound.py").write_text(shell)
    launcher = tmp_path / "prted"
    launcher.write_text(f"#!/bin/sh\n{sys.executable} bound.py\ntrue\n")
    launcher.chmod(0o755)

    def run(*arguments: str) -> str:
        command = [str(launcher), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout

    assert run().strip() == f"({first},) {everything} True"
    assert run("--bind-to", "core").strip() == f"({first},) {everything} True --bind-to"


def test_every_thread_is_bound_anew() -> None:
    everything = tuple(sorted(os.sched_getaffinity(0)))
    seen: list[set[int]] = []
    bound, looked = threading.Event(), threading.Event()

    def look() -> None:
        bound.wait(10)
        seen.append(os.sched_getaffinity(0))
        looked.set()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        bind(everything[:1])
        bound.set()
        assert looked.wait(10)
    finally:
        bind(everything)
        thread.join()
    assert seen == [{everything[0]}]
    assert os.sched_getaffinity(0) == set(everything)


def test_an_asked_binding_is_read_from_the_environment() -> None:
    found = own_cores(MPIRUN, "a", {"PRTE_MCA_hwloc_default_binding_policy": "core"})
    assert found.asked == "PRTE_MCA_hwloc_default_binding_policy"
    assert (found.is_mpirun, found.started_by) == (True, "Open MPI's mpirun")


def test_one_core() -> None:
    assert is_one_core((0,))
    assert not is_one_core(tuple(range(os.cpu_count() or 1))) or (os.cpu_count() or 1) <= 2
    assert _listed("0,4-6\n") == [0, 4, 5, 6]
