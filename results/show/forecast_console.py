"""A prediction in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from autotune.profilers.breakdown import largest_costs
from autotune.results.show.cluster_console import show_tree
from autotune.results.show.report_console import show_breakdown
from autotune.results.show.schedule_console import show_chart
from autotune.results.store.forecast import Forecast, LeftOutRanks, RankForecast
from autotune.results.text.numbers import (
    format_ms,
    format_number,
    format_percent,
    format_rate,
    format_times,
    plan_summary,
)
from autotune.workloads.blocks import Timetable
from autotune.workloads.quantity import format_bytes

LABEL = "predicted, not measured"


def show_forecasts(
    console: Console, forecasts: Sequence[Forecast], tables: Sequence[Timetable | None] | None = None
) -> None:
    """One prediction, or one before and one after an edit of the cluster. `tables`: the schedules of pipelined plans."""
    for forecast, table in zip(forecasts, tables or [None] * len(forecasts), strict=True):
        _show(console, forecast, table)
    if len(forecasts) > 1:
        before, after = forecasts[0], forecasts[-1]
        ratio = after.samples_per_s / before.samples_per_s
        console.print(Text(f"{after.cluster}: {format_times(ratio)} the samples per second ({LABEL})"), soft_wrap=True)


def show_planned(console: Console, best: Forecast, default: Forecast, how: str, table: Timetable | None = None) -> None:
    """The plan that was found, and what torch DDP's default would take. `how`: it was found, and how to measure it."""
    _show(console, best, table)
    ratio = default.step_s / best.step_s
    text = f"{format_times(ratio)} torch DDP with its defaults, {format_ms(default.step_s)} ms ({LABEL}); {how}"
    console.print(Text(text), soft_wrap=True)


def _show(console: Console, forecast: Forecast, table: Timetable | None) -> None:
    title = f"{forecast.workload} on {forecast.cluster} ({LABEL})"
    console.print(Panel(Text("\n".join(_headline(forecast))), title=title, title_align="left"))
    if forecast.tree is not None:
        show_tree(console, forecast.tree)
    console.print(_rank_table(forecast))
    if table is not None:
        console.print(Text(f"The schedule ({LABEL})"))
        show_chart(console, table, [_device_label(rank) for rank in forecast.ranks])
    if forecast.breakdown is not None:
        costs = largest_costs(forecast.breakdown)
        show_breakdown(console, f"Where a step goes ({LABEL})", forecast.breakdown, costs, step="simulated")
    console.print(_origin_table(forecast))
    for doubt in forecast.doubts:
        console.print(Text(f"not measured: {doubt}", style="yellow"), soft_wrap=True)


def _headline(forecast: Forecast) -> list[str]:
    lines = [
        f"{format_ms(forecast.step_s)} ms a step, {format_rate(forecast.samples_per_s)} samples/s",
        f"plan: {plan_summary(forecast.plan)}",
    ]
    if forecast.step_range_s is not None:
        low, high = map(format_ms, forecast.step_range_s)
        lines.insert(1, f"{low} to {high} ms: if stages compute while they send, and if they do not; that is not known")
    if forecast.limit is not None and forecast.limit_share is not None:
        share, limit = format_percent(forecast.limit_share), format_ms(forecast.limit.step_s)
        which = "without stages, on any" if forecast.plan.placement is None else "with its ops placed anywhere on some"
        lines.insert(
            1, f"{share} of the limit ({limit} ms), below which no lossless plan can go {which} of these devices"
        )
    if forecast.price_per_million_samples is not None:
        lines.append(f"{format_number(forecast.price_per_million_samples)} per million samples")
    if forecast.joules_per_step is not None:
        lines.append(f"{format_number(forecast.joules_per_step)} J a step")
    lines += [_left_out(one, forecast.step_s) for one in forecast.left_out]
    if not forecast.fits:
        lines.append("does NOT fit: " + ", ".join(f"rank {rank.rank}" for rank in forecast.ranks if not rank.fits))
    return lines


def _left_out(one: LeftOutRanks, step_s: float) -> str:
    which = f"rank {one.ranks[0]}" if len(one.ranks) == 1 else f"ranks {', '.join(map(str, one.ranks[:_MOST_RANKS]))}"
    if len(one.ranks) > _MOST_RANKS:
        which += f" and {len(one.ranks) - _MOST_RANKS} more"
    if one.step_with_s is None:
        return f"left out: {which} ({one.device}), whose memory does not hold a part of this job"
    with_ms, without_ms = format_ms(one.step_with_s), format_ms(step_s)
    return f"left out: {which} ({one.device}): with it, {with_ms} ms a step instead of {without_ms}"


def _device_label(rank: RankForecast) -> str:
    limit = "" if rank.memory_bytes is None else f"/{format_bytes(rank.memory_bytes)}"
    bubble = f"{100 * (rank.bubble or 0.0):3.0f} %"
    return f"rank {rank.rank:<2} bubble {bubble} memory {format_bytes(rank.peak_memory_bytes) + limit:<9}"


def _rank_table(forecast: Forecast) -> Table:
    table = Table(title=f"Per rank ({LABEL})", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("rank", "device", "samples", "busy ms", "peak memory", "at ms", "of"):
        table.add_column(name, justify="left" if name == "device" else "right")
    for rank in forecast.ranks[:_MOST_RANKS]:
        table.add_row(
            str(rank.rank),
            rank.device,
            str(rank.samples),
            format_ms(rank.compute_s),
            format_bytes(rank.peak_memory_bytes),
            format_ms(rank.peak_at_s),
            "no limit" if rank.memory_bytes is None else format_bytes(rank.memory_bytes) + ("" if rank.fits else " !"),
        )
    if len(forecast.ranks) > _MOST_RANKS:
        table.add_row("", f"and {len(forecast.ranks) - _MOST_RANKS} more", "", "", "", "", "")
    return table


def _origin_table(forecast: Forecast) -> Table:
    table = Table(title="What this rests on", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("cost of", "source", "measured from ... to", "fit off by"):
        table.add_column(name)
    for origin in forecast.origins:
        known = "" if origin.high is None else f"{origin.low:g} to {origin.high:g}"
        table.add_row(origin.what, origin.source, known, format_percent(origin.worst_error) if origin.high else "")
    return table


_MOST_RANKS = 16
