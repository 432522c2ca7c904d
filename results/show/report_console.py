"""The report in a terminal, and as plain text in a log.

Whether the stream is a terminal is a parameter and never detected: under mpirun every rank has a pty, and detection would
always report one. Our own text is ASCII and printed without markup, so a message with [brackets] or a narrow encoding
cannot break it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, Literal

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from autotune.profilers.breakdown import Breakdown
from autotune.results.judge.report import rank_clusters
from autotune.results.judge.report_data import SweepReport
from autotune.results.show.cluster_console import show_tree
from autotune.results.show.report_tables import (
    CLUSTERS,
    KNOBS,
    RANKS,
    TRIALS,
    Column,
    Row,
    comparison_columns,
    make_table,
)
from autotune.results.store.record import TrialState
from autotune.results.text.breakdown_text import LEGEND, bars, queue_text
from autotune.results.text.numbers import format_ms, format_percent

WIDTH = 100
TOP_TRIALS = 8
TOP_RANKS = 12


def make_console(
    *,
    stream: IO[str],
    terminal: bool,
    color: bool | None = None,
    width: int | None = None,
    quiet: bool = False,
) -> Console:
    """A console on a stream. Colour: as `color`, else on a terminal unless NO_COLOR is set. Width: at most 100 columns."""
    colored = color if color is not None else terminal and not os.environ.get("NO_COLOR")
    system: Literal["auto", "standard"] = "auto" if terminal else "standard"
    console = Console(
        file=stream,
        force_terminal=terminal,
        color_system=system if colored else None,
        no_color=not colored,
        width=width if terminal or width else WIDTH,
        quiet=quiet,
        markup=False,
        highlight=False,
        emoji=False,
    )
    console.width = min(console.width, WIDTH)
    return console


def show_error(console: Console, message: str) -> None:
    """An error as one paragraph, not broken into lines: it may be searched for."""
    console.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


def show_reports(console: Console, reports: Sequence[SweepReport]) -> None:
    """The report of each cluster, and their ranking if there are several."""
    for report in reports:
        show_report(console, report)
    if len(reports) > 1:
        show_ranking(console, reports)


def show_report(console: Console, report: SweepReport) -> None:
    """The whole report: what was found, compared, worth, and how to use it."""
    _show_headline(console, report)
    if report.tree is not None:
        console.print()
        show_tree(console, report.tree)
    if report.comparison:
        _show_comparison(console, report)
    if report.knobs:
        title = f"What each knob was worth ({report.label}): best plan against itself with one reset to its default"
        _show_table(console, title, KNOBS, report.knobs)
    if report.searched:
        console.print(Text(f"Searched: {', '.join(report.searched)}.", style="dim"), soft_wrap=True)
    if report.ranks:
        _show_ranks(console, report)
    if report.breakdown is not None:
        show_breakdown(console, f"Where a step goes ({report.label}): best plan", report.breakdown, report.costs)
    if report.trials:
        _show_trials(console, report)
    _show_use(console, report)


def show_ranking(console: Console, reports: Sequence[SweepReport]) -> None:
    """Several clusters of one workload, the fastest first."""
    rows = rank_clusters(reports)
    if not rows:
        return
    labels = ", ".join(sorted({row.label for row in rows}))
    _show_table(console, f"Device mixes for {reports[0].workload} ({labels}): fastest first", CLUSTERS, rows)
    _notes(console, [f"{row.cluster}: {row.note}" for row in rows if row.note])


def show_breakdown(
    console: Console, title: str, breakdown: Breakdown, costs: Sequence[str], *, step: str = "traced"
) -> None:
    """One step: a bar per rank, and what costs most."""
    _title(console, f"{title}, one {step} step of {format_ms(breakdown.step_s)} ms")
    for line in bars(breakdown):
        console.print(Text(line), soft_wrap=True)
    _notes(console, [LEGEND])
    for cost in (*costs, queue_text(breakdown.queueing)):
        if cost:
            console.print(Text(f"- {cost}"), soft_wrap=True)


def _show_headline(console: Console, report: SweepReport) -> None:
    text = Text(report.headline, style="bold")
    for sentence in report.findings:
        text.append(f"\n{sentence}", style="not bold")
    if report.best is not None:
        text.append("\nBest plan: ", style="not bold").append(report.best.summary, style="not bold cyan")
    for warning in report.warnings:
        text.append(f"\nWarning: {warning}", style="not bold yellow")
    title = Text(f"{report.workload} on {report.cluster} ({report.label})", style="bold")
    console.print(Panel(text, title=title, title_align="left", padding=(0, 1)))


def _show_comparison(console: Console, report: SweepReport) -> None:
    rounds = f"{report.num_rounds} interleaved rounds of {report.steps_per_round} steps, 95 % intervals"
    rows = [*report.comparison, *([report.noise] if report.noise else [])]
    first = report.comparison[0].name
    _show_table(console, f"What was compared ({report.label}): {rounds}", comparison_columns(first), rows)
    notes = []
    if report.noise:
        notes.append(f"{report.noise.name} is the same plan measured once more: what differs there is noise.")
    if report.limit and not all(row.is_lossless for row in report.comparison):
        notes.append("* loses precision; the limit is that of lossless plans.")
    _notes(console, notes)


def _show_ranks(console: Console, report: SweepReport) -> None:
    both = any(row.default for row in report.ranks) and report.default != report.best
    change = "default -> best plan" if both else "default" if report.default else "best plan"
    _show_table(console, f"Per rank ({report.label}): {change}", RANKS, report.ranks[:TOP_RANKS])
    if len(report.ranks) > TOP_RANKS:
        _notes(console, [f"and {len(report.ranks) - TOP_RANKS} more ranks"])


def _show_trials(console: Console, report: SweepReport) -> None:
    measured = [row for row in report.trials if row.step_s is not None]
    counts = ", ".join(f"{count} {state}" for state, count in report.counts.items() if count)
    title = f"What was tried ({report.label}): {counts}"
    _show_table(console, title, TRIALS, measured[:TOP_TRIALS])
    notes = []
    slower = len(measured) - TOP_TRIALS
    if slower > 0:
        notes.append(f"and {slower} slower {'one' if slower == 1 else 'ones'}")
    if report.model_error is not None:
        notes.append(f"the simulator's step times were off by {format_percent(report.model_error)} (median)")
    reasons = [_first_reason(report, state) for state in (TrialState.INFEASIBLE, TrialState.FAILED)]
    _notes(console, ["; ".join(notes), *reasons])


def _first_reason(report: SweepReport, state: TrialState) -> str:
    row = next((row for row in report.trials if row.state == state.value and row.reason), None)
    return "" if row is None else f"{state.value}: {' '.join(row.reason.split())}"


def _show_use(console: Console, report: SweepReport) -> None:
    _title(console, f"{'Use it' if report.best_file else 'Next'} ({report.label})")
    if report.best_file is not None:
        console.print(Text.assemble("  plan file: ", (report.best_file, "cyan")), soft_wrap=True)
    for command in report.commands:
        console.print(Text(f"  # {command.purpose}", style="dim"))
        console.print(Text(f"  {command.line}", style="cyan"), soft_wrap=True)


def _show_table(console: Console, title: str, columns: Sequence[Column[Row]], rows: Sequence[Row]) -> None:
    _title(console, title)
    if rows:
        console.print(make_table(columns, rows, width=console.width))


def _title(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))


def _notes(console: Console, notes: Sequence[str]) -> None:
    for note in filter(None, notes):
        console.print(Text(note, style="dim"))
