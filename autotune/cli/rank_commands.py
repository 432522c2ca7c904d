"""The commands that run on all ranks: sweep, train, race, profile, the doctor of a job. Each runs its job, keeps the result and shows it.

What a job needs is imported once its input has been checked: torch and rich are slow to load.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from autotune.cli.on_ranks import Launch, run_on_ranks, write_json_document
from autotune.cli.terminal import STDERR, console
from autotune.jobs.job import ProfileJob, RaceJob, SweepJob, TrainJob, race_file
from autotune.runtime.control.mpi import Control
from autotune.workloads.cluster import Cluster
from autotune.workloads.serial import to_data


def run_sweep(job: SweepJob, launch: Launch) -> int:
    """`autotune sweep` on this rank."""

    def body(clusters: tuple[Cluster, ...], control: Control) -> None:
        from autotune.jobs.sweep import sweep  # noqa: PLC0415 - loads torch
        from autotune.results.show.progress import SweepProgress  # noqa: PLC0415
        from autotune.results.show.report_console import show_reports  # noqa: PLC0415

        with SweepProgress(_progress_console(launch, control)) as progress:
            reports = sweep(job, clusters, control, progress)
        if control.is_leader:
            _output(launch, reports if len(reports) > 1 else reports[0], lambda screen: show_reports(screen, reports))

    return run_on_ranks(job, launch, body)


def run_train(job: TrainJob, launch: Launch) -> int:
    """`autotune train` on this rank."""

    def body(clusters: tuple[Cluster, ...], control: Control) -> None:
        from autotune.jobs.train import train  # noqa: PLC0415 - loads torch
        from autotune.results.show.training_console import show_training  # noqa: PLC0415
        from autotune.results.show.training_progress import TrainingProgress  # noqa: PLC0415

        with TrainingProgress(_progress_console(launch, control), job.steps) as progress:
            report = train(job, clusters[0], control, progress)
        if report is not None:
            _output(launch, report, lambda screen: show_training(screen, report))

    return run_on_ranks(job, launch, body)


def run_race(job: RaceJob, launch: Launch) -> int:
    """`autotune race` on this rank."""

    def body(clusters: tuple[Cluster, ...], control: Control) -> None:
        from autotune.jobs.race import race  # noqa: PLC0415 - loads torch
        from autotune.results.show.progress import SweepProgress  # noqa: PLC0415
        from autotune.results.show.race_console import show_race  # noqa: PLC0415
        from autotune.results.store.store import write_json  # noqa: PLC0415

        with SweepProgress(_progress_console(launch, control)) as progress:
            result = race(job, clusters[0], control, progress)
        if result is not None:
            file = race_file(job, clusters[0])
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, result)
            _output(launch, result, lambda screen: show_race(screen, result))

    return run_on_ranks(job, launch, body)


def run_profile(job: ProfileJob, launch: Launch) -> int:
    """`autotune profile` on this rank."""

    def body(clusters: tuple[Cluster, ...], control: Control) -> None:
        from autotune.jobs.profile import profile  # noqa: PLC0415 - loads torch
        from autotune.results.show.profile_console import show_profile  # noqa: PLC0415
        from autotune.results.show.progress import SweepProgress  # noqa: PLC0415
        from autotune.results.store.profile_file import save_profile  # noqa: PLC0415

        with SweepProgress(_progress_console(launch, control)) as progress:
            result = profile(job, clusters[0], control, progress)
        if result is not None:
            path = save_profile(job.results, result)
            _output(launch, result, lambda screen: show_profile(screen, result, path))

    return run_on_ranks(job, launch, body)


def run_doctor(job: ProfileJob, launch: Launch, modules: Sequence[str]) -> int:
    """`mpirun -n N autotune doctor` on this rank: exit code 1 if anything needs fixing."""
    hung: list[bool] = []

    def body(_: tuple[Cluster, ...], control: Control) -> int:
        from autotune.jobs.self_test.finding import PROBLEM  # noqa: PLC0415
        from autotune.jobs.self_test.self_test import self_test, summary  # noqa: PLC0415 - loads torch
        from autotune.results.show.list_console import show_findings  # noqa: PLC0415
        from autotune.results.show.progress import SweepProgress  # noqa: PLC0415

        with SweepProgress(_progress_console(launch, control)) as progress:
            result = self_test(control, modules, progress.phase)
        if control.is_leader:
            rows = [(f.what, f.state, f.detail, f.fix) for f in result.findings]
            _output(launch, result.findings, lambda screen: show_findings(screen, rows, summary(result.findings)))
        hung.append(result.has_hung)
        return int(any(finding.state == PROBLEM for finding in result.findings))

    exit_code = run_on_ranks(job, launch, body)
    if any(hung):  # Python's own end would wait for what never comes
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    return exit_code


def _progress_console(launch: Launch, control: Control) -> Any:
    return console(STDERR, quiet=launch.quiet or not control.is_leader)


def _output(launch: Launch, result: Any, show: Callable[[Any], None]) -> None:
    if launch.as_json:
        write_json_document(to_data(result))
    else:
        show(console())
