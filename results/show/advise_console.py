"""Advice in a terminal: a table of changes or subsets, what limits each, and a picture of where adding stops paying."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.results.show.provision_console import money
from autotune.results.store.advice import Advice, Advised, Subset, Verdict
from autotune.results.store.forecast import Forecast
from autotune.results.text.numbers import (
    MISSING,
    counted,
    format_interval,
    format_ms,
    format_number,
    format_percent,
    format_rate,
    format_times,
    plan_summary,
)

_BAR = 40
_MOST_ROWS = 24
PAYS = 0.05
"""A host that adds less than this part of the samples per second does not pay."""
_COLOURS = {Verdict.WORTH_IT: "green", Verdict.MAKES_IT_FIT: "green", Verdict.SLOWER: "red"}


def show_advised(console: Console, advised: Advised) -> None:
    """Changes or subsets."""
    if advised.subsets:
        _show_subsets(console, advised)
    else:
        _show_changes(console, advised)
    error = format_percent(advised.ratio_error)
    console.print(
        Text(f"{advised.label}; nine of ten predicted ratios are within {error} of the measured one", style="dim"),
        soft_wrap=True,
    )


def _show_changes(console: Console, advised: Advised) -> None:
    _line(console, f"{advised.workload} on {advised.cluster}: changes of the cluster ({advised.label})", "bold")
    rows = advised.changes
    table = _table(("change", "left"), ("samples/s", "right"), ("times", "right"), ("interval", "right"))
    table.add_column("")
    optional = _optional_columns([row.forecast for row in rows], [row.measured_s for row in rows])
    _add_columns(table, optional)
    for row in rows:
        interval = MISSING if row.times_low is None else format_interval(row.times_low, row.times_high or 0.0)
        table.add_row(
            Text(_change(row)),
            _rate(row.forecast),
            format_times(row.times),
            interval,
            Text(row.verdict or "", style=_COLOURS.get(row.verdict, "") if row.verdict else ""),
            *_optional_cells(optional, row.forecast, row.measured_s),
        )
    console.print(table)
    for row in rows:
        _line(console, f"{_change(row)}: {_plan(row.forecast)}{row.limited_by}")


def _change(row: Advice) -> str:
    return row.change or "as it is"


def _show_subsets(console: Console, advised: Advised) -> None:
    which = "all parts of it" if advised.is_complete else "grown by the best next host"
    _line(console, f"{advised.workload} on {advised.cluster}: {which} ({advised.label})", "bold")
    for line in _best_lines(advised.subsets):
        _line(console, line)
    rows = advised.subsets[:_MOST_ROWS]
    table = _table(("devices", "left"), ("hosts", "left"), ("samples/s", "right"))
    optional = _optional_columns([row.forecast for row in rows], [row.measured_s for row in rows])
    _add_columns(table, optional)
    for row in rows:
        cells = _optional_cells(optional, row.forecast, row.measured_s)
        table.add_row(Text(counted(row.devices)), Text(", ".join(row.hosts)), _rate(row.forecast), *cells)
    console.print(table)
    if len(advised.subsets) > len(rows):
        _line(console, f"the fastest {len(rows)} of {len(advised.subsets)}; all of them: --json", "dim")
    _show_growth(console, advised.subsets)


def _best_lines(subsets: Sequence[Subset]) -> list[str]:
    """The best per second, per money and per joule."""
    fitting = [subset for subset in subsets if subset.forecast is not None]
    if not fitting:
        return [f"no part of it fits: {subsets[0].limited_by}"]
    fastest = fitting[0]
    lines = [f"fastest: {_subset(fastest)}; {fastest.limited_by}"]
    for what, cost in (("cheapest per sample", _price), ("least energy per sample", joules_per_million)):
        known = [(value, subset) for subset in fitting if (value := cost(subset.forecast)) is not None]
        if known:
            value, subset = min(known, key=lambda entry: entry[0])
            lines.append(f"{what}: {_subset(subset)}, {format_number(value)} per million samples")
    return lines


def _subset(subset: Subset) -> str:
    return f"{counted(subset.devices)}, {_rate(subset.forecast)} samples/s, {_plan(subset.forecast)}".rstrip("; ")


def _show_growth(console: Console, subsets: Sequence[Subset]) -> None:
    """The fastest subset of each size as bars."""
    sizes = growth(subsets)
    if len(sizes) < 2:
        return
    most = max(rate for _, rate, _ in sizes)
    _line(console, "samples/s of the fastest subset of so many hosts")
    for size, rate, subset in sizes:
        bar = "#" * round(_BAR * rate / most)
        _line(console, f"{size:3d} |{bar:<{_BAR}}| {format_rate(rate)}  {counted(subset.devices)}")
    stop = stops_paying(sizes)
    if stop is not None:
        _line(console, f"from {stop} hosts on, one more adds less than {format_percent(PAYS)}")


def growth(subsets: Sequence[Subset]) -> list[tuple[int, float, Subset]]:
    """Number of hosts, samples per second and subset: the fastest of each size."""
    best: dict[int, tuple[float, Subset]] = {}
    for subset in subsets:
        rate = subset.forecast.samples_per_s if subset.forecast is not None else 0.0
        if len(subset.hosts) not in best or rate > best[len(subset.hosts)][0]:
            best[len(subset.hosts)] = rate, subset
    return [(size, *best[size]) for size in sorted(best)]


def stops_paying(sizes: Sequence[tuple[int, float, Subset]]) -> int | None:
    """The smallest number of hosts after which no larger subset is faster by more than PAYS for each host it adds."""
    for at, (size, rate, _) in enumerate(sizes[:-1]):
        later = sizes[at + 1 :]
        if rate > 0 and all(more <= rate * (1 + PAYS) ** (larger - size) for larger, more, _ in later):
            return size
    return None


def _optional_columns(forecasts: Sequence[Forecast | None], measured: Sequence[float | None]) -> list[str]:
    known = [forecast for forecast in forecasts if forecast is not None]
    columns = []
    if any(_price(forecast) is not None for forecast in known):
        columns.append("per million")
    if any(forecast.joules_per_step is not None for forecast in known):
        columns.append("J per million")
    if any(seconds is not None for seconds in measured):
        columns += ["ms", "measured ms"]
    return columns


def _add_columns(table: Table, columns: Sequence[str]) -> None:
    for column in columns:
        table.add_column(column, justify="right")


def _optional_cells(columns: Sequence[str], forecast: Forecast | None, measured_s: float | None) -> list[str]:
    cells = {
        "per million": money(_price(forecast)),
        "J per million": money(joules_per_million(forecast)),
        "ms": MISSING if forecast is None else format_ms(forecast.step_s),
        "measured ms": format_ms(measured_s),
    }
    return [cells[column] for column in columns]


def _price(forecast: Forecast | None) -> float | None:
    return None if forecast is None else forecast.price_per_million_samples


def joules_per_million(forecast: Forecast | None) -> float | None:
    """None where a device states no power."""
    if forecast is None or forecast.joules_per_step is None:
        return None
    return 1e6 * forecast.joules_per_step / forecast.global_batch


def _rate(forecast: Forecast | None) -> str:
    return MISSING if forecast is None else format_rate(forecast.samples_per_s)


def _plan(forecast: Forecast | None) -> str:
    return "" if forecast is None else f"{plan_summary(forecast.plan)}; "


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, justify in columns:
        table.add_column(name, justify="right" if justify == "right" else "left")
    return table


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)
