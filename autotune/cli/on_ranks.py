"""Run a job on all ranks and return one exit code.

Every rank executes this module. Rank 0 alone validates the input: it reports an error once, and all ranks exit with the
same code. An exception that escapes on any other rank aborts the whole job and names that rank.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autotune.cli.terminal import STDERR
from autotune.jobs.job import Job, check_job, check_started
from autotune.results.store.environment import available_cores
from autotune.runtime.control.mpi import Control
from autotune.runtime.control.start import start_control
from autotune.runtime.launch.launcher import is_launched
from autotune.runtime.launch.mpirun import become, mpirun_command
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import AutotuneError

_FORWARD_S = 0.5
_CHUNK, _CHUNK_S = 4096, 0.02
"""mpirun drops what it has not yet forwarded when a rank exits: long documents are written no faster than it reads."""
DEBUG_VARIABLE = "AUTOTUNE_DEBUG"

Body = Callable[[tuple[Cluster, ...], Control], int | None]
"""What a rank runs; it may return an exit code, the same on all ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """How a command is started and where its result goes."""

    num_ranks: int | None
    """Start mpirun with so many ranks; None: this process is a rank already."""
    arguments: list[str]
    as_json: bool
    quiet: bool


def run_on_ranks(job: Job, launch: Launch, body: Body) -> int:
    """Start mpirun with --ranks; otherwise run `body` as one rank of the job. Returns the exit code of this rank."""
    if launch.num_ranks is not None and not is_launched(os.environ):
        check_job(job, launch.num_ranks)
        command = mpirun_command(
            launch.num_ranks, launch.arguments, num_cores=available_cores(), is_root=os.geteuid() == 0
        )
        sys.stderr.write(f"+ {shlex.join(command)}\n")
        become(command)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # torch.profiler reports its own start and stop otherwise
    control = start_control()
    _exit_when_interrupted(control)
    try:
        control.network()  # first: from here on a rank that ends in any way is noticed by all
        clusters = _check_on_rank_0(job, control)
        exit_code = body(clusters, control) or 0
        _leave_together(control)
    except Exception as error:  # noqa: BLE001 - no rank may be left hanging
        exit_code = _end(error, control)
    except SystemExit as error:  # a user's code has called sys.exit
        control.leave(error)
        raise
    control.leave()
    return exit_code


def _leave_together(control: Control) -> None:
    """Let mpirun forward what rank 0 has printed before any rank ends: without this it cut the output of 3 jobs in 8.

    The cause is not certain. Ranks that wait in MPI's own finalisation spin, which may starve mpirun.
    """
    if control.is_leader:
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_FORWARD_S if is_launched(os.environ) else 0.0)
    control.broadcast()


class _RefusedError(AutotuneError):
    """Rank 0 has refused the input; this rank only has to exit."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("refused by rank 0")
        self.exit_code = exit_code


def _check_on_rank_0(job: Job, control: Control) -> tuple[Cluster, ...]:
    """Rank 0 checks the input and broadcasts the result."""
    if not control.is_leader:
        if exit_code := control.broadcast():
            raise _RefusedError(exit_code)
        return check_job(job, control.size)
    try:
        if not is_launched(os.environ):
            check_started(job)
        clusters = check_job(job, control.size)
    except AutotuneError as error:
        _report(str(error))
        control.broadcast(error.exit_code)
        raise _RefusedError(error.exit_code) from error
    control.broadcast(0)
    return clusters


def _end(error: Exception, control: Control) -> int:
    """Report the error once, end every rank, return the exit code."""
    if isinstance(error, _RefusedError):
        return error.exit_code
    from autotune.jobs.context import AgreedError  # noqa: PLC0415 - loads torch, which a checked job has loaded anyway
    from autotune.runtime.trial.workers import DismissedError, LostRankError, dismiss_followers  # noqa: PLC0415

    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error)
    if control.watcher is not None and control.watcher.has_lost:
        control.watcher.end()
    if isinstance(error, DismissedError):
        return error.exit_code
    if isinstance(error, AgreedError):
        if control.is_leader:
            _report(str(error))
        control.share(None)
        return error.exit_code
    known = isinstance(error, AutotuneError)
    _report(str(error) if known else f"rank {control.rank}: {type(error).__name__}: {error}")
    exit_code = error.exit_code if isinstance(error, AutotuneError) else 1
    if not control.is_leader or not known or isinstance(error, LostRankError):
        control.abort(exit_code)  # the state of the other ranks is unknown, so no order can reach them
    dismiss_followers(control, exit_code)
    return exit_code


def _report(message: str) -> None:
    sys.stderr.write(f"autotune: error: {message}\n")
    sys.stderr.flush()


def _exit_when_interrupted(control: Control) -> None:
    """Every finished trial is on disk, so an interrupted job prints one line and exits."""

    def exit_now(number: int, _frame: Any) -> None:
        if control.watcher is not None:
            control.watcher.interrupted()
        if control.is_leader and not (control.watcher is not None and control.watcher.has_lost):
            os.write(STDERR, b"\nautotune: interrupted; the same command goes on from here\n")
        os._exit(128 + number)

    signal.signal(signal.SIGINT, exit_now)
    signal.signal(signal.SIGTERM, exit_now)


def write_json_document(data: Any) -> None:
    """One JSON document on stdout."""
    text = json.dumps(data, indent=1) + "\n"
    for start in range(0, len(text), _CHUNK):
        sys.stdout.write(text[start : start + _CHUNK])
        sys.stdout.flush()
        time.sleep(_CHUNK_S if is_launched(os.environ) else 0.0)
