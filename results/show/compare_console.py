"""What has changed between two sides, in a terminal."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.text import Text

from autotune.results.judge.compare import BETTER, NO_DIFFERENCE, TOO_FEW, WORSE, Change, Changes
from autotune.results.show.report_tables import Column, interval_cell, make_table, ratio_cell
from autotune.results.text.numbers import MISSING, format_seconds

_NAME_WIDTH = 34
_STYLES = {BETTER: "green", WORSE: "bold red"}


def show_changes(console: Console, changes: Changes) -> None:
    """A table of both sides, one sentence that sums it up, and what to bear in mind."""
    how = "interleaved within one job" if changes.in_one_job else "from different jobs"
    title = f"{changes.before} -> {changes.after}: {how}, {changes.confidence * 100:g} % intervals"
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(make_table(_columns(changes), changes.rows, width=console.width))
    counts = {verdict: sum(row.verdict == verdict for row in changes.rows) for verdict in (BETTER, WORSE)}
    found = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or _nothing_found(changes)
    style = next((_STYLES[verdict] for verdict in (WORSE, BETTER) if counts[verdict]), "")
    console.print(Text(f"{found} (of {len(changes.rows)} compared)", style=style))
    for note in changes.notes:
        console.print(Text(note, style="dim"), soft_wrap=True)


def _nothing_found(changes: Changes) -> str:
    few = all(row.verdict == TOO_FEW for row in changes.rows)
    return f"{TOO_FEW} for a verdict" if few else f"{NO_DIFFERENCE} beyond noise"


def _columns(changes: Changes) -> list[Column[Change]]:
    several = len({row.group for row in changes.rows}) > 1

    def name(row: Change) -> str:
        return textwrap.fill(f"{row.group}: {row.name}" if several else row.name, _NAME_WIDTH)

    return [
        Column("", name, is_text=True),
        Column("before", lambda row: format_seconds(row.before_s), spare=2),
        Column("after", lambda row: format_seconds(row.after_s), spare=1),
        Column("speed", lambda row: ratio_cell(row.ratio)),
        Column(f"{changes.confidence * 100:g} %\ninterval", lambda row: interval_cell(row.ratio)),
        Column("verdict", lambda row: row.verdict, is_text=True),
        Column("would find\nslow-down of", _detectable),
        Column("rounds", lambda row: str(row.ratio.num_rounds), spare=3),
    ]


def _detectable(row: Change) -> str:
    return MISSING if row.detectable is None else f"{row.detectable * 100:.1f} %"
