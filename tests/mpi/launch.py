"""Start a real MPI job and collect its output; every job has a time limit and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from autotune.runtime.launch.mpirun import NO_FABRIC

ROOT = Path(__file__).parents[2]
MPIRUN = Path(sys.executable).parent / "mpirun"
FLAGS = ("--bind-to", "none", *NO_FABRIC, "--oversubscribe", "--allow-run-as-root")


@dataclass(frozen=True)
class Finished:
    """A job that has ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def errors(self) -> list[str]:
        """Our own error messages, of which there must be at most one."""
        return [line.strip("\0") for line in self.err.splitlines() if "autotune: error:" in line]


def start(num_ranks: int, *command: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """mpirun in a process group of its own; single-threaded ranks."""
    return run_command([str(MPIRUN), "-n", str(num_ranks), *FLAGS, sys.executable, *command], cwd, env)


def run_command(command: list[str], cwd: Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Any command, in a process group of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | (env or {})
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def mpirun(
    num_ranks: int, *command: str, cwd: Path, timeout_s: float = 90, env: dict[str, str] | None = None
) -> Finished:
    """Run `python COMMAND` on that many ranks."""
    return _finished(start(num_ranks, *command, cwd=cwd, env=env), timeout_s)


def torchrun(
    num_ranks: int, *command: str, cwd: Path, timeout_s: float = 90, env: dict[str, str] | None = None
) -> Finished:
    """Run `python COMMAND` on that many ranks, started by torchrun on a free port."""
    agent = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    return _finished(run_command([sys.executable, *agent, *command], cwd, env), timeout_s)


def _finished(process: subprocess.Popen[str], timeout_s: float) -> Finished:
    begun = time.monotonic()
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"the job hung for {timeout_s} s\n{out}\n{err}") from None
    return Finished(code=process.returncode, out=out, err=err, seconds=time.monotonic() - begun)


def autotune(
    num_ranks: int, *arguments: str, cwd: Path, timeout_s: float = 90, env: dict[str, str] | None = None
) -> Finished:
    """Run `autotune ARGUMENTS` on that many ranks."""
    return mpirun(num_ranks, "-m", "autotune", *arguments, cwd=cwd, timeout_s=timeout_s, env=env)


def refused(done: Finished, *words: str) -> None:
    """Exit 2, nothing on stdout, exactly one message of ours with these words."""
    assert done.code == 2, done.err
    assert len(done.errors) == 1, done.err
    assert all(word in done.errors[0] for word in words), done.errors
    assert not done.out
