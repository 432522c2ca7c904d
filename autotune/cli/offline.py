"""The commands that need no MPI job: doctor, best, report, compare. None of them loads torch, mpi4py or Optuna."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from autotune.cli.terminal import console
from autotune.profilers.perfetto import write_trace
from autotune.profilers.timeline import Timeline
from autotune.results.judge.compare import compare_sides
from autotune.results.judge.report import build_report
from autotune.results.judge.series_file import read_side
from autotune.results.store.best import all_best, best_path, matching
from autotune.results.store.command_line import first_sweep
from autotune.results.store.record import BestPlan
from autotune.results.store.store import StudyStore, find_studies, write_json
from autotune.workloads.errors import SpecError
from autotune.workloads.serial import to_data

REGRESSION = 4
"""The exit code of `compare` when something became slower."""


def doctor(results: Path, num_ranks: int, *, as_json: bool) -> int:
    """Exit code 1 if anything needs fixing."""
    from autotune.cli.doctor import examine  # noqa: PLC0415

    findings = examine(results, num_ranks)
    if as_json:
        write(to_data(findings))
    else:
        from autotune.results.show.list_console import show_findings  # noqa: PLC0415 - rich is not needed for JSON

        show_findings(console(), [(f.what, f.state, f.detail, f.fix) for f in findings])
    return int(any(finding.state == "problem" for finding in findings))


def choices(*, as_markdown: bool, as_json: bool) -> int:
    """Everything that a plan or a search may choose from."""
    from autotune.jobs.choices import all_choices  # noqa: PLC0415
    from autotune.jobs.choices import as_markdown as page  # noqa: PLC0415

    if as_json:
        write(all_choices())
    elif as_markdown:
        sys.stdout.write(page())
    else:
        from autotune.results.show.list_console import show_choices  # noqa: PLC0415 - rich is not needed for JSON

        show_choices(console(), all_choices())
    return 0


def best(results: Path, workload: str | None, cluster: str | None, export: Path | None, *, as_json: bool) -> int:
    """List the kept plans, or export the one that matches."""
    kept = matching(all_best(results), workload, cluster)
    if not kept:
        named = " ".join(f"--{name} {value}" for name, value in (("workload", workload), ("cluster", cluster)) if value)
        sweep = first_sweep(results, workload, cluster)
        raise SpecError(f"no best plan{' for ' + named if named else ''} in {str(results)!r}: run `{sweep}` first")
    if export is not None:
        if len(kept) > 1:
            names = ", ".join(f"{plan.workload} on {plan.cluster}" for _, plan in kept)
            raise SpecError(f"--export needs one plan but {len(kept)} are kept ({names}): add --workload and --cluster")
        export_plan(export, kept[0][1])
    if as_json:
        write([to_data(plan) | {"file": str(path)} for path, plan in kept])
    else:
        from autotune.results.show.list_console import show_best  # noqa: PLC0415

        show_best(console(), kept)
    return 0


def report(results: Path, study: str | None, trace: Path | None, trial: int | None, *, as_json: bool) -> int:
    """Show what a study has found so far; with --trace, write the trace of one of its trials."""
    stores = find_studies(results, study)
    reports = [_report(results, store) for store in stores]
    if trace is not None:
        _write_trace(stores, reports, trace, trial)
    if as_json:
        write([to_data(entry) for entry in reports] if len(reports) > 1 else to_data(reports[0]))
        return 0
    from autotune.results.show.report_console import show_reports  # noqa: PLC0415

    show_reports(console(), reports)
    return 0


def compare(results: Path, before: str, after: str, *, as_json: bool) -> int:
    """Exit code 4 if anything that both sides measured became slower beyond noise."""
    changes = compare_sides(read_side(before, results), read_side(after, results))
    if as_json:
        write(to_data(changes))
    else:
        from autotune.results.show.compare_console import show_changes  # noqa: PLC0415

        show_changes(console(), changes)
    return REGRESSION if changes.regressions else 0


def _write_trace(stores: list[StudyStore], reports: list[Any], trace: Path, trial: int | None) -> None:
    if len(stores) > 1:
        clusters = ", ".join(store.folder.name for store in stores)
        raise SpecError(
            f"--trace writes one trial but the study has several clusters ({clusters}): sweep one under a --study name"
        )
    timeline = stores[0].timeline(trial) if trial is not None else _best_timeline(stores[0], reports[0])
    write_trace(timeline, trace)


def _best_timeline(store: StudyStore, report: Any) -> Timeline:
    """The traced step of the best plan; where none was kept, of the fastest trial that has one."""
    traced = store.traced()
    finished = [row for row in report.trials if row.step_s is not None and row.number in traced]
    if report.best is not None and (kept := store.plan_timeline(report.best.plan)) is not None:
        return kept
    if report.best is None or not finished:
        raise SpecError("--trace: the study has no traced trial to write: let its sweep go on, by the same command")
    own = next((row.number for row in finished if row.plan == report.best.plan), None)
    if own is None:
        own = finished[0].number
        sys.stderr.write(f"autotune: no trace of the best plan was kept: --trace writes trial {own}, the fastest\n")
    return store.timeline(own)


def _report(results: Path, store: StudyStore) -> Any:
    info = store.info()
    path = best_path(results, info.workload.name, info.cluster.name)
    best_file = str(path) if path.exists() else None
    return build_report(info, store.records(), store.comparison(), best_file, results=results)


def export_plan(path: Path, plan: BestPlan) -> None:
    """Write a plan to the file that --export names."""
    try:
        write_json(path, plan)
    except OSError as error:
        raise SpecError(f"cannot write {str(path)!r}: {error.strerror}: name another file with --export") from error


def write(data: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(data, indent=1) + "\n")
