"""Short lists in a terminal: what the doctor found, which plans are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.results.store.record import BestPlan
from autotune.results.text.numbers import format_interval, format_ms, format_times, plan_summary

_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def show_findings(console: Console, findings: Sequence[tuple[str, str, str, str]], summary: str = "") -> None:
    """(what, state, detail, fix) per line; the fix below where there is one. `summary`: the last line."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for what, state, detail, fix in findings:
        table.add_row(Text(state, style=_STYLES.get(state, "")), Text(what), Text(detail))
        if fix:
            table.add_row("", "", Text(f"-> {fix}", style="cyan"))
    console.print(table)
    if summary:
        console.print(Text(summary, style="bold"))


def show_choices(console: Console, choices: Mapping[str, Mapping[str, str]]) -> None:
    """Names and what they are, under titles."""
    for title, named in choices.items():
        console.print(Text(title, style="bold"))
        table = Table(show_header=False, box=None, pad_edge=False)
        for name, text in named.items():
            table.add_row(f"  {name}", text)
        console.print(table)


def show_best(console: Console, kept: Sequence[tuple[Path, BestPlan]]) -> None:
    """The kept plans and their files."""
    for path, best in kept:
        gain = ""
        if best.speedup_over_default is not None and best.speedup_interval:
            low, high = best.speedup_interval
            gain = f", {format_times(best.speedup_over_default)} ({format_interval(low, high)}) DDP default"
        console.print(Text(f"{best.workload} on {best.cluster} ({best.label})", style="bold"))
        console.print(Text(f"  {format_ms(best.step_s)} ms/step{gain}"), soft_wrap=True)
        console.print(Text(f"  {plan_summary(best.plan)}"), soft_wrap=True)
        console.print(Text(f"  {path}"), soft_wrap=True)
