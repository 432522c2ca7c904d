"""From a command to a job on all ranks, and back to one exit code.

Every rank comes through here. Bad input is found by rank 0 alone, which tells the user once and the other ranks to leave
with the same code. What escapes on any other rank ends the whole job, naming that rank.
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
from typing import Any

from autotune.cli.terminal import STDERR, STDOUT, is_terminal, terminal_width
from autotune.jobs.job import Job, check_job, check_started, race_file
from autotune.results.store.environment import available_cores
from autotune.runtime.control.launch import become, mpirun_command
from autotune.runtime.control.mpi import Control, launched_ranks, start_control
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import AutotuneError, SpecError
from autotune.workloads.serial import to_data

_FORWARD_S = 0.5
_CHUNK, _CHUNK_S = 4096, 0.02
"""mpirun drops what it has not yet passed on when a rank leaves: long documents are written no faster than it reads."""
DEBUG_VARIABLE = "AUTOTUNE_DEBUG"

Body = Callable[[tuple[Cluster, ...], Control], None]


def run_sweep(job: Job, num_ranks: int | None, arguments: list[str], *, as_json: bool, quiet: bool) -> int:
    """`autotune sweep` on this rank."""

    def body(clusters: tuple[Cluster, ...], control: Control) -> None:
        from autotune.jobs.sweep import sweep  # noqa: PLC0415 - loads torch, after the door
        from autotune.results.show.progress import SweepProgress  # noqa: PLC0415
        from autotune.results.show.report_console import show_ranking, show_report  # noqa: PLC0415

        with SweepProgress(_console(STDERR, quiet=quiet or not control.is_leader)) as progress:
            reports = sweep(job, clusters, control, progress)
        if not control.is_leader:
            return
        if as_json:
            _write_json([to_data(report) for report in reports] if len(reports) > 1 else to_data(reports[0]))
            return
        console = _console(STDOUT)
        for report in reports:
            show_report(console, report)
        if len(reports) > 1:
            show_ranking(console, reports)

    return run_on_ranks(job, num_ranks, arguments, body)


def run_train(job: Job, num_ranks: int | None, arguments: list[str], *, as_json: bool, quiet: bool) -> int:
    """`autotune train` on this rank."""
    check_one_cluster(job)

    def body(clusters: tuple[Cluster, ...], control: Control) -> None:
        from autotune.jobs.train import train  # noqa: PLC0415 - loads torch, after the door
        from autotune.results.show.training_console import show_training  # noqa: PLC0415
        from autotune.results.show.training_progress import TrainingProgress  # noqa: PLC0415

        with TrainingProgress(_console(STDERR, quiet=quiet or not control.is_leader), job.train_steps) as progress:
            report = train(job, clusters[0], control, progress)
        if report is None:
            return
        if as_json:
            _write_json(to_data(report))
        else:
            show_training(_console(STDOUT), report)

    return run_on_ranks(job, num_ranks, arguments, body)


def run_race(job: Job, num_ranks: int | None, arguments: list[str], *, as_json: bool, quiet: bool) -> int:
    """`autotune race` on this rank."""
    check_one_cluster(job)

    def body(clusters: tuple[Cluster, ...], control: Control) -> None:
        from autotune.jobs.race import race  # noqa: PLC0415 - loads torch, after the door
        from autotune.results.show.progress import SweepProgress  # noqa: PLC0415
        from autotune.results.show.race_console import show_race  # noqa: PLC0415
        from autotune.results.store.store import write_json  # noqa: PLC0415

        with SweepProgress(_console(STDERR, quiet=quiet or not control.is_leader)) as progress:
            result = race(job, clusters[0], control, progress)
        if result is None:
            return
        file = race_file(job, clusters[0])
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, result)
        if as_json:
            _write_json(to_data(result))
        else:
            show_race(_console(STDOUT), result)

    return run_on_ranks(job, num_ranks, arguments, body)


def run_profile(job: Job, num_ranks: int | None, arguments: list[str], *, as_json: bool, quiet: bool) -> int:
    """`autotune profile` on this rank."""
    check_one_cluster(job)

    def body(clusters: tuple[Cluster, ...], control: Control) -> None:
        from autotune.jobs.profile import profile  # noqa: PLC0415 - loads torch, after the door
        from autotune.results.show.profile_console import show_profile  # noqa: PLC0415
        from autotune.results.show.progress import SweepProgress  # noqa: PLC0415
        from autotune.results.store.profile_file import save_profile  # noqa: PLC0415

        with SweepProgress(_console(STDERR, quiet=quiet or not control.is_leader)) as progress:
            result = profile(job, clusters[0], control, progress.phase)
        if result is None:
            return
        path = save_profile(job.results, result)
        if as_json:
            _write_json(to_data(result))
        else:
            show_profile(_console(STDOUT), result, path)

    return run_on_ranks(job, num_ranks, arguments, body)


def check_one_cluster(job: Job) -> None:
    """Only a sweep goes through several: elsewhere all but the first would be left out without a word."""
    if len(job.clusters) > 1:
        raise SpecError(
            f"--cluster {','.join(job.clusters)!r} names {len(job.clusters)} mixes: only a sweep takes several, name one"
        )


def run_on_ranks(job: Job, num_ranks: int | None, arguments: list[str], body: Body) -> int:
    """Start mpirun if asked to; otherwise be one rank of the job. The exit code of this rank."""
    if num_ranks is not None and launched_ranks() is None:
        check_job(job, num_ranks)
        command = mpirun_command(num_ranks, arguments, num_cores=available_cores(), is_root=os.geteuid() == 0)
        sys.stderr.write(f"+ {shlex.join(command)}\n")
        become(command)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # torch.profiler reports its own start and stop otherwise
    control = start_control()
    _tell_when_interrupted(control)
    try:
        body(_pass_the_door(job, control), control)
    except Exception as error:  # noqa: BLE001 - the last line of defence: no rank may be left hanging
        return _end(error, control)
    _leave_together(control)
    return 0


def _leave_together(control: Control) -> None:
    """Let mpirun pass on what rank 0 has printed before any rank ends: without this it cut the output of 3 jobs in 8.

    Why is not known for sure. Ranks that wait in MPI's own finalisation spin, which may starve mpirun.
    """
    if control.is_leader:
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_FORWARD_S if launched_ranks() else 0.0)
    control.broadcast()


class _RefusedError(AutotuneError):
    """Rank 0 has refused the input; this rank only has to leave."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("refused by rank 0")
        self.exit_code = exit_code


def _pass_the_door(job: Job, control: Control) -> tuple[Cluster, ...]:
    """Rank 0 checks the input; every rank learns the verdict."""
    if not control.is_leader:
        if exit_code := control.broadcast():
            raise _RefusedError(exit_code)
        return check_job(job, control.size)
    try:
        if launched_ranks() is None and control.size == 1:
            check_started(job)
        clusters = check_job(job, control.size)
    except AutotuneError as error:
        _tell(str(error))
        control.broadcast(error.exit_code)
        raise _RefusedError(error.exit_code) from error
    control.broadcast(0)
    return clusters


def _end(error: Exception, control: Control) -> int:
    """Say what went wrong, once; get every rank out; the exit code."""
    if isinstance(error, _RefusedError):
        return error.exit_code
    from autotune.jobs.context import AgreedError  # noqa: PLC0415 - loads torch, which past the door is loaded anyway
    from autotune.runtime.trial.workers import DismissedError, LostRankError, dismiss_followers  # noqa: PLC0415

    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error)
    if isinstance(error, DismissedError):
        return error.exit_code
    if isinstance(error, AgreedError):
        if control.is_leader:
            _tell(str(error))
        control.share(None)
        return error.exit_code
    known = isinstance(error, AutotuneError)
    _tell(str(error) if known else f"rank {control.rank}: {type(error).__name__}: {error}")
    exit_code = error.exit_code if isinstance(error, AutotuneError) else 1
    if not control.is_leader or not known or isinstance(error, LostRankError):
        control.abort(exit_code)  # nobody knows where the other ranks are, so they cannot be told to leave
    dismiss_followers(control, exit_code)
    return exit_code


def _tell(message: str) -> None:
    sys.stderr.write(f"autotune: error: {message}\n")
    sys.stderr.flush()


def _tell_when_interrupted(control: Control) -> None:
    """Whatever is finished is on disk, so an interrupted job just says so and leaves."""

    def leave(number: int, _frame: Any) -> None:
        if control.is_leader:
            os.write(STDERR, b"\nautotune: interrupted; the same command goes on from here\n")
        os._exit(128 + number)

    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)


def _console(stream: int, *, quiet: bool = False) -> Any:
    from autotune.results.show.report_console import make_console  # noqa: PLC0415

    file = sys.stdout if stream == STDOUT else sys.stderr
    return make_console(stream=file, terminal=is_terminal(stream), width=terminal_width(stream), quiet=quiet)


def _write_json(data: Any) -> None:
    text = json.dumps(data, indent=1) + "\n"
    for start in range(0, len(text), _CHUNK):
        sys.stdout.write(text[start : start + _CHUNK])
        sys.stdout.flush()
        time.sleep(_CHUNK_S if launched_ranks() else 0.0)
