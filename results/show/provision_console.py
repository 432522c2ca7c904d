"""What to rent, in a terminal: stages with their units, methods beside the proven optimum, the front as a picture and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.results.text.numbers import MISSING, format_percent, format_rate, format_seconds

_HEIGHT, _WIDTH = 16, 72
_MOST_ROWS = 40
Document = Mapping[str, Any]


def show_provision(console: Console, document: Document) -> None:
    """A plan, with the other methods if they were asked for; or the front."""
    if "front" in document:
        _show_front(console, document)
        return
    for line in _headline(document):
        console.print(Text(line, style="bold" if line.startswith("cost") else ""), soft_wrap=True)
    console.print(_stages(document["stages"]))
    console.print(_types(document))
    if "methods" in document:
        console.print(_methods(document["methods"]))
    for name, text in document.get("source", {}).items():
        console.print(Text(f"{name}: {text}", style="dim"), soft_wrap=True)


def money(value: float | None) -> str:
    """Four figures: 0.001234, 12.34, 1234."""
    return MISSING if value is None else f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def _headline(document: Document) -> list[str]:
    proven, bound = document["proven"], document["lower_bound"]
    if proven:
        proof = "fastest within the budget, proven" if "budget" in document else "the least possible, proven"
    elif bound is not None and bound > 0:
        proof = f"at most {format_percent(document['cost'] / bound - 1)} above the least"
    else:
        proof = "not proven"
    rates = (
        f"{money(document['cost_per_million'])} per million examples; {money(document['price_per_hour'])} per hour; "
        f"{format_rate(document['throughput'])} examples/s (floor {format_rate(document['min_throughput'])}); "
        f"found in {format_seconds(max(document['seconds'], 1e-9))}"
    )
    return [
        f"cost {money(document['cost'])} for {document['examples']:g} examples ({proof}), by {document['method']}",
        rates,
    ]


def _stages(stages: Sequence[Document]) -> Table:
    table = _table(("layers", "left"), ("number", "right"), ("type", "left"), ("units", "right"))
    for heading in ("compute ms", "transfer ms", "on its units ms", "per hour"):
        table.add_column(heading, justify="right")
    for stage in stages:
        names = stage["layers"]
        span = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
        times = (f"{1e3 * stage[key]:.4g}" for key in ("compute_s", "transfer_s", "seconds"))
        table.add_row(
            Text(span),
            str(len(names)),
            Text(stage["type"]),
            str(stage["units"]),
            *times,
            money(stage["price_per_hour"]),
        )
    return table


def _types(document: Document) -> Table:
    table = _table(("type", "left"), ("units", "right"), ("limit", "right"), ("per hour", "right"))
    for heading in ("alpha", "error", "beta", "error"):
        table.add_column(heading, justify="right")
    for one in document["types"]:
        limit = MISSING if one["limit"] is None else str(one["limit"])
        table.add_row(
            Text(one["name"]),
            str(document["units"][one["name"]]),
            limit,
            money(one["price_per_hour"]),
            f"{one['alpha']:.3g}",
            _error(one["alpha_error"]),
            f"{one['beta']:.3g}",
            _error(one["beta_error"]),
        )
    return table


def _error(error: float | None) -> str:
    return MISSING if error is None else f"{100 * error:.2g} %"


def _methods(rows: Sequence[Document]) -> Table:
    table = _table(("method", "left"), ("cost", "right"), ("gap", "right"), ("examples/s", "right"))
    table.add_column("stages", justify="right")
    table.add_column("time", justify="right")
    table.add_column("")
    for row in rows:
        found = row["cost"] is not None
        table.add_row(
            row["method"],
            money(row["cost"]),
            f"{100 * row['gap']:.1f} %" if found else MISSING,
            format_rate(row["throughput"]),
            str(row["stages"]) if found else MISSING,
            format_seconds(max(row["seconds"], 1e-9)),
            "proven" if row["proven"] and found else "" if found else "no plan meets the floor within the limits",
        )
    return table


def _show_front(console: Console, document: Document) -> None:
    rows = document["front"]
    console.print(Text(f"{len(rows)} plans of which none is cheaper and faster than another; then: {document['end']}"))
    for line in picture([(row["throughput"], row["cost"]) for row in rows]):
        console.print(Text(line), soft_wrap=True)
    table = _table(("examples/s", "right"), ("cost", "right"), ("per hour", "right"), ("units", "left"))
    table.add_column("")
    shown = rows if len(rows) <= _MOST_ROWS else [rows[len(rows) * at // _MOST_ROWS] for at in range(_MOST_ROWS)]
    for row in shown:
        units = ", ".join(f"{count} {name}" for name, count in row["units"].items() if count)
        proof = "proven" if row["proven"] else ""
        table.add_row(
            format_rate(row["throughput"]), money(row["cost"]), money(row["price_per_hour"]), Text(units), proof
        )
    console.print(table)
    if len(rows) > _MOST_ROWS:
        console.print(Text(f"every {len(rows) / _MOST_ROWS:.1f}th plan; all of them: --json", style="dim"))


def picture(points: Sequence[tuple[float, float]]) -> list[str]:
    """Cost over throughput as characters, with the ends of both axes."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    width, height = max(xs) - min(xs) or 1.0, max(ys) - min(ys) or 1.0
    cells = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for x, y in points:
        cells[round((1 - (y - min(ys)) / height) * (_HEIGHT - 1))][round((x - min(xs)) / width * (_WIDTH - 1))] = "●"
    labels = {0: money(max(ys)), _HEIGHT - 1: money(min(ys))}
    margin = max(map(len, labels.values()))
    lines = [f"{labels.get(at, ''):>{margin}} │{''.join(row)}" for at, row in enumerate(cells)]
    left, right = format_rate(min(xs)), format_rate(max(xs))
    axis = " " * margin + " └" + "─" * _WIDTH
    return ["cost", *lines, axis, " " * (margin + 2) + f"{left}{right:>{_WIDTH - len(left)}}  examples/s"]


def _table(*columns: tuple[str, Any]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading, justify in columns:
        table.add_column(heading, justify=justify)
    return table
