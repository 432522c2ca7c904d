"""A pipeline schedule in a terminal: what each device does when, where it idles, and what it holds.

A cell is a moment; its digit is the micro-batch (its last digit), its colour what is done. A schedule too long for the screen is
shown by its beginning and its end: the middle repeats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.text import Text

from autotune.results.text.numbers import format_percent
from autotune.workloads.blocks import WEIGHT, Block, Timetable

_STYLES = {
    "forward": "white on blue",
    "backward": "black on green",
    "weight": "black on yellow",
    "other": "black on cyan",
}
_BUBBLE = (".", "dim")
_MOST_DEVICES = 32


class Progress(Protocol):
    """The best schedule of a search so far, and its bounds."""

    @property
    def doing(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def makespan_s(self) -> float: ...
    @property
    def makespan_bound_s(self) -> float: ...
    @property
    def period_s(self) -> float | None: ...
    @property
    def period_bound_s(self) -> float: ...


class Ticker:
    """Prints a line whenever a figure has improved."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: tuple[float, ...] = ()

    def update(self, progress: Progress) -> None:
        now = (progress.makespan_s, progress.makespan_bound_s, progress.period_s or 0.0, progress.period_bound_s)
        if now == self._shown:
            return
        self._shown = now
        period = (
            ""
            if progress.period_s is None
            else f", period {progress.period_s:.6g} (bound {progress.period_bound_s:.6g})"
        )
        makespan = f"makespan {progress.makespan_s:.6g} (bound {progress.makespan_bound_s:.6g})"
        self._console.print(Text(f"{progress.seconds:6.1f} s  {makespan}{period}  {progress.doing}", style="dim"))


def show_schedule(console: Console, answer: Mapping[str, Any], table: Timetable) -> None:
    """The figures, then the chart."""
    for line in _headline(answer):
        console.print(Text(line, style="bold" if line.startswith("makespan") else ""), soft_wrap=True)
    show_chart(console, table, [_label(answer, table, device) for device in range(len(table.order))])
    others = sorted(answer["portfolio"].items(), key=lambda item: float(item[1]))[:5]
    listed = ", ".join(f"{name} {makespan:.6g}" for name, makespan in others)
    console.print(Text(f"without search: {listed}"), soft_wrap=True)


def _headline(answer: Mapping[str, Any]) -> list[str]:
    makespan, bound = answer["makespan"], answer["makespan_lower_bound"]
    gap = (
        "the least possible"
        if makespan <= bound * (1 + 1e-9)
        else f"at most {format_percent(makespan / bound - 1)} above the least"
    )
    period, least = answer["period"], answer["period_lower_bound"]
    proof = (
        "proven shortest" if answer["proven"] else f"at most {format_percent(period / least - 1)} above the shortest"
    )
    return [
        f"makespan {makespan:.6g} for {answer['micro_batches']} micro-batches ({gap}), by {answer['winner']}",
        f"period {period:.6g} ({proof}, on a grid of {answer['grid']:.3g}); searched for {answer['seconds']:.1f} s",
    ]


def show_chart(console: Console, table: Timetable, labels: Sequence[str]) -> None:
    """What each device does when, with a label in front of its row, and what the colours mean."""
    shown = labels[:_MOST_DEVICES]
    width = max(console.width - max(map(len, shown)) - 2, 20)
    makespan = table.makespan_s
    shortest = min((block.seconds for block in table.graph.blocks if block.seconds > 0), default=1.0)
    cell = max(shortest, makespan / (2 * width)) if makespan / shortest <= 4 * width else shortest
    fits = makespan <= cell * width
    panels = [("", 0.0)] if fits else [("beginning", 0.0), ("end", makespan - cell * width)]
    for title, start in panels:
        if title:
            console.print(Text(f"{title} (a cell is {cell:.3g})", style="dim"))
        for device, label in enumerate(shown):
            row = Text(f"{label}  ")
            row.append_text(_row(table, device, start, cell, min(width, math.ceil(makespan / cell))))
            console.print(row, soft_wrap=True)
    if len(table.order) > _MOST_DEVICES:
        console.print(Text(f"and {len(table.order) - _MOST_DEVICES} more devices", style="dim"))
    console.print(
        Text("bubble: part of the time in which a device does nothing; memory: most held, of the limit", style="dim")
    )
    _show_legend(console, table)


def _label(answer: Mapping[str, Any], table: Timetable, device: int) -> str:
    limit = table.graph.memory[device]
    memory = f"{answer['peak_memory'][device]:.4g}" + (f"/{limit:.4g}" if math.isfinite(limit) else "")
    return f"device {device:<2} bubble {100 * answer['bubbles'][device]:3.0f} % memory {memory:<9}"


def _row(table: Timetable, device: int, start: float, cell: float, width: int) -> Text:
    """What the device does in the middle of each cell."""
    blocks = {block.name: block for block in table.graph.blocks}
    cells: list[tuple[str, str]] = [_BUBBLE] * width
    for slot in table.order[device]:
        block = blocks[slot.block]
        first = math.ceil((slot.start_s - start) / cell - 0.5)
        last = math.ceil((slot.start_s + block.seconds - start) / cell - 0.5)
        for place in range(max(first, 0), min(last, width)):
            cells[place] = (str(slot.microbatch % 10), _STYLES[_kind(block)])
    return Text.assemble(*cells)


def _kind(block: Block) -> str:
    if block.part == WEIGHT:
        return "weight"
    if block.memory < 0 or block.part:
        return "backward"
    return "forward" if block.memory > 0 else "other"


def _show_legend(console: Console, table: Timetable) -> None:
    kinds: Sequence[str] = [kind for kind in _STYLES if any(_kind(block) == kind for block in table.graph.blocks)]
    words = {
        "forward": "takes memory",
        "backward": "gives it back",
        "weight": "weight part of backward",
        "other": "neither",
    }
    parts: list[tuple[str, str]] = []
    for kind in kinds:
        parts += [(" 0 ", _STYLES[kind]), (f" {words[kind]}  ", "")]
    console.print(Text.assemble(*parts, _BUBBLE, " bubble"))
