"""The control plane: the only door to mpi4py. Rank 0 leads; the others take orders and report.

Messages are small JSON-able values. Nobody waits inside MPI, where a waiting rank spins at full speed and slows the
ranks that work: all waits here poll with a short sleep. An exception that escapes on any rank ends the whole job, with
one message that names the rank.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from autotune.workloads.errors import AutotuneError, SpecError

_POLL_S = 0.0005
_TAG_DOWN, _TAG_UP, _TAG_CLOCK = 1, 2, 3
_CLOCK_QUESTIONS = 20
_PR_SET_PDEATHSIG = 1
_LATER_S = 1.0
"""How long other ranks let rank 0 speak first."""


class RankSilentError(AutotuneError):
    """A rank did not report in time; the job cannot go on without it."""


class Control:
    """This process's place in the job, and its line to the others."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    @property
    def comm(self) -> Any:
        """MPI's communicator of all ranks."""
        return self._comm

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def broadcast(self, message: Any = None) -> Any:
        """Rank 0's message, on every rank."""
        if not self.is_leader:
            return self._receive(source=0, tag=_TAG_DOWN, deadline=None)
        self._finish([self.comm.isend(message, dest=rank, tag=_TAG_DOWN) for rank in range(1, self.size)])
        return message

    def gather(self, message: Any, *, timeout_s: float | None = None) -> list[Any] | None:
        """Every rank's message on rank 0, None elsewhere. Raises RankSilentError naming who did not answer in time."""
        if not self.is_leader:
            self._finish([self.comm.isend(message, dest=0, tag=_TAG_UP)])
            return None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return [message, *(self._receive(source=rank, tag=_TAG_UP, deadline=deadline) for rank in range(1, self.size))]

    def share(self, message: Any) -> list[Any]:
        """Every rank's message on every rank."""
        return list(self.broadcast(self.gather(message)))

    def clock_offset(self, clock: Callable[[], float] = time.monotonic) -> tuple[float, float]:
        """How far this rank's clock is ahead of rank 0's, and how wrong that may be; called by all ranks together.

        Each rank in turn is asked for its time again and again; the quickest answer bounds the error by half its round
        trip (Cristian, 1989). For once waits are not slept: a sleep would be the error.
        """
        found = (0.0, 0.0)
        for rank in range(1, self.size):
            if self.is_leader:
                answers = [self._ask_time(rank, clock) for _ in range(_CLOCK_QUESTIONS)]
                offset = min(answers, key=lambda answer: answer[1])
                self.comm.send(offset, dest=rank, tag=_TAG_CLOCK)
            elif self.rank == rank:
                for _ in range(_CLOCK_QUESTIONS):
                    self.comm.recv(source=0, tag=_TAG_CLOCK)
                    self.comm.send(clock(), dest=0, tag=_TAG_CLOCK)
                found = self.comm.recv(source=0, tag=_TAG_CLOCK)
            self.share(None)
        return found

    def _ask_time(self, rank: int, clock: Callable[[], float]) -> tuple[float, float]:
        begun = clock()
        self.comm.send(None, dest=rank, tag=_TAG_CLOCK)
        theirs = float(self.comm.recv(source=rank, tag=_TAG_CLOCK))
        ended = clock()
        return theirs - (begun + ended) / 2, (ended - begun) / 2

    def _receive(self, *, source: int, tag: int, deadline: float | None) -> Any:
        while not self.comm.iprobe(source=source, tag=tag):
            if deadline is not None and time.monotonic() > deadline:
                raise RankSilentError(f"rank {source} did not answer in time: it hangs or has died")
            time.sleep(_POLL_S)
        return self.comm.recv(source=source, tag=tag)

    def _finish(self, requests: list[Any]) -> None:
        while not all(request.test()[0] for request in requests):
            time.sleep(_POLL_S)

    def abort(self, exit_code: int) -> NoReturn:
        """End every rank of the job at once. Whatever must survive is on disk already."""
        sys.stdout.flush()
        sys.stderr.flush()
        self.comm.Abort(exit_code)
        os._exit(exit_code)


class Alone(Control):
    """A job of one process, started without mpirun: MPI is loaded only if a plan's transport is MPI."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1

    @property
    def comm(self) -> Any:
        from mpi4py import MPI  # noqa: PLC0415 - importing it starts MPI

        return MPI.COMM_WORLD


def start_control() -> Control:
    """Join the MPI job (a job of one, if started without mpirun)."""
    if launched_ranks() is None:
        return Alone()
    _die_with_parent()
    from mpi4py import MPI  # noqa: PLC0415 - importing it joins the job

    return Control(MPI.COMM_WORLD.Dup())


def launched_rank() -> int:
    """This process's rank under mpirun, 0 outside; known without touching MPI."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def launched_ranks() -> int | None:
    """How many ranks mpirun started, or None outside mpirun; known without touching MPI."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return None


def check_launcher() -> None:
    """Refuse a script that another launcher has started several times: each process would be a job of its own."""
    size = os.environ.get("WORLD_SIZE", "")
    if launched_ranks() is None and size.isdigit() and int(size) > 1:
        raise SpecError(
            f"WORLD_SIZE is {size} and no MPI launcher has started this process: start the script by "
            f"`mpirun -n {size} python script.py` instead of torchrun"
        )


def speak_briefly() -> None:
    """On all ranks but the first, an error that all ranks have in common is one line, not a traceback each."""
    if not launched_rank():
        return
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not isinstance(error, AutotuneError):
            usual(kind, error, trace)
            return
        time.sleep(_LATER_S)
        sys.stderr.write(f"autotune: error on rank {launched_rank()}: {error}\n")

    sys.excepthook = hook


def _die_with_parent() -> None:
    """On Linux, end with mpirun: killing it hard would otherwise leave its ranks running."""
    if launched_ranks() is not None and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
