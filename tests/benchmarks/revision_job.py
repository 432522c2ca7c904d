"""One revision's MPI job, which measures a block of steps when it is its turn and sleeps when it is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from autotune.workloads.errors import AutotuneError
from tests.mpi.launch import FLAGS, MPIRUN, ROOT

PROGRAM = ROOT / "tests" / "benchmarks" / "programs" / "revision_block.py"
START_S, BLOCK_S, END_S = 180.0, 150.0, 30.0
POLL_S = 0.005


class RevisionFailedError(AutotuneError):
    """A revision cannot run the block program, or failed while it did."""


class RevisionJob:
    """One revision's MPI job."""

    def __init__(self, name: str, packages: Path, folder: Path, arguments: list[str], num_ranks: int) -> None:
        self.name = name
        self._folder = folder
        self._num_blocks = 0
        folder.mkdir()
        self._log = (folder / "log").open("w+", encoding="utf-8")
        command = [str(MPIRUN), "-n", str(num_ranks), *FLAGS, sys.executable, str(PROGRAM), str(folder), str(packages)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(packages)}
        self._process = subprocess.Popen(
            [*command, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def wait_ready(self) -> None:
        self._wait_for("ready", START_S)

    def block(self, steps: int) -> dict[str, Any]:
        """Let it measure one block; every step's time, and the CPU time of one."""
        turn = self._folder / f"{self._num_blocks}.turn"
        temporary = turn.with_suffix(".part")
        temporary.write_text(json.dumps(steps))
        temporary.replace(turn)
        answer: dict[str, Any] = self._wait_for(f"{self._num_blocks}.json", BLOCK_S)
        self._num_blocks += 1
        if not answer["steps_s"]:
            raise RevisionFailedError(f"{self.name}: the block failed: {answer['reason']}")
        return answer

    def close(self) -> None:
        """Ask it to end; if it does not, end it."""
        (self._folder / "end").touch()
        try:
            self._process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()

    def _wait_for(self, name: str, limit_s: float) -> Any:
        deadline = time.monotonic() + limit_s
        while not (self._folder / name).exists():
            if self._process.poll() is not None:
                raise RevisionFailedError(f"{self.name} ended early:\n{self._last_words()}")
            if time.monotonic() > deadline:
                raise RevisionFailedError(f"{self.name} was silent for {limit_s:.0f} s:\n{self._last_words()}")
            time.sleep(POLL_S)
        return json.loads((self._folder / name).read_text())

    def _last_words(self) -> str:
        return "\n".join((self._folder / "log").read_text(errors="replace").splitlines()[-12:])
