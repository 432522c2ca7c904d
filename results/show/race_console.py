"""A race in a terminal."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.text import Text

from autotune.results.judge.race import Place, Race, places
from autotune.results.show.report_tables import NAME_WIDTH, Column, interval_cell, make_table, ratio_cell
from autotune.results.store.record import AGAIN
from autotune.results.text.numbers import MISSING, format_number, format_percent, format_rate, plan_summary


def show_race(console: Console, race: Race) -> None:
    """The speed of each contender beside that of tuned DDP, and the steps that its tuning took."""
    rows = places(race)
    title = (
        f"Race: {race.workload.name} on {race.cluster.name} ({race.cluster.label}), "
        f"{len(race.entrants[0].rounds_s)} interleaved rounds of {race.steps_per_round} steps, 95 % intervals"
    )
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(make_table(COLUMNS, rows, width=console.width))
    for row in rows:
        if not row.name.endswith(AGAIN):
            console.print(Text(f"{row.name}: {plan_summary(row.plan)}", style="dim"), soft_wrap=True)


def _to_best(row: Place) -> str:
    if not row.tuning_steps:
        return MISSING
    return "never" if row.steps_to_near_best is None else str(row.steps_to_near_best)


COLUMNS: list[Column[Place]] = [
    Column("", lambda row: textwrap.fill(row.name, NAME_WIDTH), is_text=True),
    Column("samples\n/s", lambda row: format_rate(row.samples_per_s)),
    Column("vs DDP\ntuned", lambda row: ratio_cell(row.vs_peer)),
    Column("95 %\ninterval", lambda row: interval_cell(row.vs_peer)),
    Column("same\nkind", lambda row: ratio_cell(row.vs_kind), spare=4),
    Column("verdict,\nsame kind", lambda row: row.vs_kind.verdict if row.vs_kind else "", is_text=True),
    Column("of\nlimit", lambda row: format_percent(row.fraction_of_limit) + ("" if row.plan.is_lossless else "*")),
    Column("CPU s\n/step", lambda row: format_number(row.cpu_s_per_step)),
    Column("tuning\nsteps", lambda row: str(row.tuning_steps) if row.tuning_steps else MISSING, spare=2),
    Column("to 95 %\nof best", _to_best),
]
