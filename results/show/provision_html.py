"""The front of throughput and cost as one HTML file without scripts: a picture (SVG) and a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from autotune.results.show.provision_console import money
from autotune.results.text.numbers import format_rate

_WIDTH, _HEIGHT, _MARGIN = 820, 420, 70
_TICKS = 6


def front_page(document: Mapping[str, Any]) -> str:
    """The page."""
    rows: Sequence[Mapping[str, Any]] = document["front"]
    points = [(row["throughput"], row["cost"]) for row in rows]
    titles = [", ".join(f"{count} {name}" for name, count in row["units"].items() if count) for row in rows]
    cells = "".join(
        f"<tr><td>{format_rate(row['throughput'])}<td>{money(row['cost'])}<td>{money(row['price_per_hour'])}"
        f"<td>{escape(title)}<td>{'proven' if row['proven'] else ''}</tr>\n"
        for row, title in zip(rows, titles, strict=True)
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Cost over throughput</title>\n'
        "<style>body{font-family:sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:right}"
        "circle{fill:#1f77b4}text{font-size:12px}.axis{stroke:#999}</style>\n"
        f"<h1>Cost of {document['examples']:g} examples over throughput</h1>\n"
        f"<p>{len(rows)} plans of which none is cheaper and faster than another; then: {escape(document['end'])}.</p>\n"
        f"{_svg(points, titles)}\n"
        "<table><tr><th>examples/s<th>cost<th>per hour<th>units<th></tr>\n"
        f"{cells}</table></html>\n"
    )


def _svg(points: Sequence[tuple[float, float]], titles: Sequence[str]) -> str:
    xs, ys = _axis([x for x, _ in points]), _axis([y for _, y in points])

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            _MARGIN + (x - xs[0]) / (xs[-1] - xs[0]) * (_WIDTH - 2 * _MARGIN),
            _HEIGHT - _MARGIN - (y - ys[0]) / (ys[-1] - ys[0]) * (_HEIGHT - 2 * _MARGIN),
        )

    left, bottom = at(xs[0], ys[0])
    right, top = at(xs[-1], ys[-1])
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img">']
    parts.append(f'<path class="axis" fill="none" d="M{left:.1f} {top:.1f}V{bottom:.1f}H{right:.1f}"/>')
    parts += [
        f'<text x="{at(tick, ys[0])[0]:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{tick:g}</text>' for tick in xs
    ]
    parts += [
        f'<text x="{left - 8:.1f}" y="{at(xs[0], tick)[1] + 4:.1f}" text-anchor="end">{tick:g}</text>' for tick in ys
    ]
    parts.append(f'<text x="{right:.1f}" y="{bottom + 40:.1f}" text-anchor="end">examples/s</text>')
    parts.append(f'<text x="{left:.1f}" y="{top - 14:.1f}" text-anchor="middle">cost</text>')
    for (x, y), title in zip(points, titles, strict=True):
        across, down = at(x, y)
        parts.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="4"><title>{escape(title)}</title></circle>')
    return "\n".join([*parts, "</svg>"])


def _axis(values: Sequence[float]) -> list[float]:
    """Round ticks that enclose all values."""
    low, high = min(values), max(values)
    span = high - low or abs(high) or 1.0
    raw = span / (_TICKS - 1)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw)
    first = math.floor(low / step)
    count = math.ceil(high / step) - first
    return [round((first + place) * step, 12) for place in range(max(count, 1) + 1)]
