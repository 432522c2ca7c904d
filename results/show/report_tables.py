"""The tables of a report: which columns each has, and what stands in a cell.

A column without a value is left out, and so are those that can be spared where the console is too narrow: figures
are never cut short.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich import box
from rich.table import Table
from rich.text import Text

from autotune.results.judge.report_data import ClusterRow, KnobRow, RankRow, Standing, TrialRow
from autotune.results.judge.stats import FASTER, NO_DIFFERENCE, SLOWER, TOO_FEW, Ratio
from autotune.results.store.record import DDP_TUNED, RankResult
from autotune.results.text.numbers import (
    MISSING,
    codecs_text,
    comm_summary,
    format_interval,
    format_ms,
    format_number,
    format_percent,
    format_rate,
    format_shares,
    format_times,
    pieces,
)
from autotune.workloads.plan import MIB, Plan

Row = TypeVar("Row")
GAP = 2
NAME_WIDTH = 24
ROLES = {"peer": "tuned DDP"}
VERDICT_STYLES = {FASTER: "green", SLOWER: "red", NO_DIFFERENCE: "dim", TOO_FEW: "dim"}


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A heading, and what a row shows under it. Figures stand to the right, words to the left."""

    heading: str
    cell: Callable[[Row], str]
    is_text: bool = False
    spare: int = 0
    """Where space is short, columns with the highest number go first; 0 stays."""


@dataclass(frozen=True, slots=True)
class _Filled:
    """A column with the cells of all rows."""

    heading: str
    cells: tuple[str, ...]
    is_text: bool
    spare: int

    @property
    def width(self) -> int:
        return max((len(line) for text in (self.heading, *self.cells) for line in text.splitlines()), default=0)


def make_table(columns: Sequence[Column[Row]], rows: Sequence[Row], *, width: int) -> Table:
    """A table for a console of this width."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0), header_style="dim")
    shown = _fitting([_fill(column, rows) for column in columns], width)
    for column in shown:
        table.add_column(
            column.heading,
            justify="left" if column.is_text else "right",
            no_wrap=not column.is_text,
            overflow="fold",
        )
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*(Text(cell, style=VERDICT_STYLES.get(cell, "")) for cell in cells))
    return table


def _fill(column: Column[Row], rows: Sequence[Row]) -> _Filled:
    cells = tuple(column.cell(row) for row in rows)
    return _Filled(heading=column.heading, cells=cells, is_text=column.is_text, spare=column.spare)


def _fitting(columns: list[_Filled], width: int) -> list[_Filled]:
    kept = [column for column in columns if any(cell not in ("", MISSING) for cell in column.cells)]
    while sum(column.width + GAP for column in kept) > width + GAP:
        sparest = max(kept, key=lambda column: column.spare)
        if sparest.spare == 0:
            break
        kept.remove(sparest)
    return kept


def ratio_cell(ratio: Ratio | None) -> str:
    return MISSING if ratio is None else format_times(ratio.value)


def interval_cell(ratio: Ratio | None) -> str:
    return "" if ratio is None else format_interval(ratio.low, ratio.high)


def _of_limit(row: Standing) -> str:
    mark = "" if row.is_lossless or row.fraction_of_limit is None else "*"
    return format_percent(row.fraction_of_limit) + mark


def _pieces(plan: Plan) -> str:
    return pieces(plan.comm) if plan.pipeline is None else f"{plan.pipeline.micro_batches} micro-batches"


def _reducer(plan: Plan) -> str:
    if plan.pipeline is not None:
        return f"{len(plan.pipeline.first_ops)} stages, {plan.pipeline.schedule}"
    return comm_summary(plan.comm) or "bucketed"


def _codec(plan: Plan) -> str:
    codecs = codecs_text(plan.compression)
    return f"{codecs}, factors" if plan.compression.factors else codecs


def _number(value: float | None) -> str:
    return MISSING if value is None else format_number(value)


def _change(row: RankRow, show: Callable[[RankResult], str]) -> str:
    """Default and best as "16 -> 27", or the one that there is."""
    shown = [show(result) for result in (row.default, row.best) if result is not None]
    return " -> ".join(shown) if row.default != row.best else shown[0]


def _late(row: RankRow) -> str:
    """Empty where no rank was late, so that the column shows only when it matters."""
    late = any(result.late_s > 0 for result in (row.default, row.best) if result is not None)
    return _change(row, lambda result: format_ms(result.late_s)) if late else ""


def comparison_columns(first: str) -> list[Column[Standing]]:
    """The comparison, with speeds over those of the contender called `first`."""
    tuned: list[Column[Standing]] = [
        Column("vs DDP\ntuned", lambda row: ratio_cell(row.vs_tuned)),
        Column("95 %\ninterval", lambda row: interval_cell(row.vs_tuned), spare=3),
    ]
    return [
        Column("", lambda row: textwrap.fill(row.name, NAME_WIDTH), is_text=True),
        Column("ms\n/step", lambda row: format_ms(row.step_s), spare=4),
        Column("samples\n/s", lambda row: format_rate(row.samples_per_s)),
        Column(textwrap.fill(f"vs {first}", 8), lambda row: ratio_cell(row.vs_first)),
        Column("95 %\ninterval", lambda row: interval_cell(row.vs_first)),
        Column("verdict", lambda row: row.verdict, is_text=True),
        *(tuned if first != DDP_TUNED else []),
        Column("of\nlimit", _of_limit, spare=1),
        Column("CPU s\n/step", lambda row: _number(row.cpu_s_per_step), spare=2),
    ]


KNOBS: list[Column[KnobRow]] = [
    Column("", lambda row: row.knob, is_text=True),
    Column("ms/step\nreset", lambda row: format_ms(row.reverted_step_s)),
    Column("speed-up\nfrom it", lambda row: ratio_cell(row.worth)),
    Column("95 %\ninterval", lambda row: interval_cell(row.worth)),
    Column("verdict", lambda row: row.verdict, is_text=True),
]

RANKS: list[Column[RankRow]] = [
    Column("rank", lambda row: str(row.rank)),
    Column("device", lambda row: textwrap.fill(row.device, NAME_WIDTH), is_text=True),
    Column("samples", lambda row: _change(row, lambda result: str(result.samples))),
    Column("compute ms", lambda row: _change(row, lambda result: format_ms(result.compute_s))),
    Column("wait ms", lambda row: _change(row, lambda result: format_ms(result.wait_s))),
    Column("CPU ms", lambda row: _change(row, lambda result: format_ms(result.cpu_s)), spare=3),
    Column(
        "memory MiB", lambda row: _change(row, lambda result: format_number(result.peak_memory_bytes / MIB)), spare=1
    ),
    Column("late ms", _late, spare=2),
]

TRIALS: list[Column[TrialRow]] = [
    Column("#", lambda row: str(row.number)),
    Column("", lambda row: ROLES.get(row.role, row.role), is_text=True),
    Column("ms\n/step", lambda row: format_ms(row.step_s)),
    Column(
        "pre-\ndicted", lambda row: "" if row.predicted_step_s is None else format_ms(row.predicted_step_s), spare=1
    ),
    Column("samples\n/s", lambda row: format_rate(row.samples_per_s), spare=3),
    Column("vs\ndefault", lambda row: format_times(row.ratio_to_default)),
    Column("CPU s\n/step", lambda row: _number(row.cpu_s_per_step), spare=2),
    Column("samples", lambda row: format_shares(row.plan.batch.samples), is_text=True),
    Column("pieces", lambda row: _pieces(row.plan), is_text=True),
    Column("reducer", lambda row: _reducer(row.plan), is_text=True),
    Column("transport", lambda row: row.plan.comm.transport, is_text=True, spare=2),
    Column("codec", lambda row: _codec(row.plan), is_text=True),
]

CLUSTERS: list[Column[ClusterRow]] = [
    Column("#", lambda row: str(row.place)),
    Column("cluster", lambda row: row.cluster, is_text=True),
    Column("samples\n/s", lambda row: format_rate(row.samples_per_s)),
    Column("by\ndefault", lambda row: format_rate(row.default_samples_per_s)),
    Column("gain", lambda row: format_times(row.gain)),
    Column("95 %\ninterval", lambda row: format_interval(*row.gain_interval) if row.gain_interval else ""),
    Column("of\nlimit", lambda row: format_percent(row.fraction_of_limit), spare=2),
    Column("best plan", lambda row: row.plan, is_text=True, spare=1),
]
