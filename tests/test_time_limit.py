"""A test session that hangs ends with the stacks of its threads, and leaves no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.gloo_ranks import in_threads
from tests.mpi.launch import ROOT

HANGING = """
import ctypes
import os
import signal
import subprocess

def test_that_blocks_in_c_code():
    apart = subprocess.Popen(["sleep", "60"], start_new_session=True)  # as mpirun is started
    if not (forked := os.fork()):  # a worker of a DataLoader that hangs: it keeps the pipes of pytest-xdist open
        signal.pause()
        os._exit(0)
    with open("hangs", "w") as file:
        file.write(f"{apart.pid} {forked}")
    ctypes.PyDLL(None).pause()  # which keeps the GIL

def test_that_passes():
    pass
"""
LIMITS_S = (4.0, 40.0)
"""The second one if Python does not even start within the first."""


def limited(seconds: float, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.time_limit", str(seconds), *command],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


IN_WORKERS = ("-n", "1", "-o", "faulthandler_timeout=1", "-o", "faulthandler_exit_on_timeout=true")


@pytest.mark.parametrize(
    "options", [IN_WORKERS, pytest.param((), marks=pytest.mark.slow)], ids=["workers", "one process"]
)
def test_a_session_that_hangs_ends_with_its_stacks(options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    for limit_s in LIMITS_S:
        begun_s = time.monotonic()
        done = limited(limit_s, sys.executable, "-m", "pytest", *options, cwd=tmp_path)
        if (tmp_path / "hangs").exists():
            break
    assert done.returncode == 124, done.stderr
    assert "in test_that_blocks_in_c_code" in done.stderr
    assert time.monotonic() - begun_s < limit_s + 15
    left = [int(pid) for pid in (tmp_path / "hangs").read_text().split()]
    assert len(left) == 2
    assert not any(psutil.pid_exists(pid) for pid in left)


def test_a_command_that_ends_gives_its_exit_code(tmp_path: Path) -> None:
    assert limited(30, sys.executable, "-c", "raise SystemExit(3)", cwd=tmp_path).returncode == 3


def test_ranks_that_hang_as_threads_are_named() -> None:
    ended = threading.Event()

    def run(rank: int) -> int:
        if rank == 1:
            ended.wait(60)
        return rank

    with pytest.raises(AssertionError, match=r"(?s)threads did not end within 0.2 s\nrank 1:.*ended.wait\(60\)"):
        in_threads(2, run, limit_s=0.2)
    ended.set()
    assert in_threads(2, run) == [0, 1]
