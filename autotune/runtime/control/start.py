"""Join the job: control over MPI where an MPI launcher has started the ranks, over a torch store under torchrun or srun without MPI."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from autotune.runtime.control.mpi import Control, SingleRank, join_mpi
from autotune.runtime.launch.launcher import Launcher, LauncherKind, launcher_of, reporting_rank
from autotune.workloads.errors import AutotuneError, SpecError

if TYPE_CHECKING:
    from autotune.runtime.control.store import StoreControl

_PR_SET_PDEATHSIG = 1
_LATER_S = 1.0
"""How long other ranks wait before they print an error, so that that of rank 0 comes first."""


def start_control() -> Control:
    """Join the job that this process was started for; a job of one rank without a launcher."""
    launcher = launcher_of(os.environ)
    if launcher.speaks_mpi:
        return _mpi_control(launcher)
    if launcher.size == 1:
        return SingleRank()
    return _store_control(launcher)


@functools.cache
def _store_control(launcher: Launcher) -> StoreControl:
    """One for the whole process, also where a script makes several jobs: the port and the names of messages are the same."""
    from autotune.runtime.control.store import start_store_control  # noqa: PLC0415 - loads torch

    _die_with_parent()
    control = start_store_control(launcher)
    atexit.register(control.leave_store)
    _release_when_failing(control)
    return control


def this_launcher() -> Launcher:
    """What has started this process."""
    return launcher_of(os.environ)


def _mpi_control(launcher: Launcher) -> Control:
    _die_with_parent()
    comm, library = join_mpi()
    if comm.Get_size() != launcher.size or comm.Get_rank() != launcher.rank:
        remedy = (
            "start the job by `srun --mpi=pmix` (`srun --mpi=list` shows what Slurm has), or without MPI by `srun --mpi=none`"
            if launcher.kind is LauncherKind.SRUN
            else "use the mpirun of the MPI library that mpi4py loads (`autotune doctor` shows both)"
        )
        raise SpecError(
            f"{launcher.kind} has started {launcher.size} ranks, of which this is {launcher.rank}, but the MPI library here "
            f"({library}) finds {comm.Get_size()}: {remedy}"
        )
    return Control(comm.Dup())


def shorten_shared_errors() -> None:
    """On ranks other than 0 print an error that all ranks have in common as one line, not as a traceback."""
    rank = reporting_rank(os.environ)
    if not rank:
        return
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not isinstance(error, AutotuneError):
            usual(kind, error, trace)
            return
        time.sleep(_LATER_S)
        sys.stderr.write(f"autotune: error on rank {rank}: {error}\n")

    sys.excepthook = hook


def _release_when_failing(control: StoreControl) -> None:
    """No MPI ends the other ranks of a script that fails on this one: once the error is printed, this does."""
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        sys.excepthook = usual
        try:
            usual(kind, error, trace)
            sys.stderr.flush()
        finally:
            control.release(1)

    sys.excepthook = hook


def _die_with_parent() -> None:
    """On Linux, end with the launcher: a SIGKILL of mpirun would otherwise leave its ranks running."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
