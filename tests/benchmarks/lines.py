"""Lines over a common axis as a small picture: one panel beside another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, MARGIN = 420, 320, 56
COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd")
NUM_STEPS = 5
"""Of an axis, about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Lines by name, each a row of points."""

    title: str
    x_label: str
    y_label: str
    lines: dict[str, Sequence[tuple[float, float]]]


def round_ticks(values: Sequence[float]) -> list[float]:
    """Round numbers, evenly spaced, from below the least to above the largest."""
    span = max(values) - min(values) or 1.0
    power = 10.0 ** math.floor(math.log10(span / NUM_STEPS))
    spacing = next(power * step for step in (1, 2, 5, 10) if span / (power * step) <= NUM_STEPS)
    first, last = math.floor(min(values) / spacing), math.ceil(max(values) / spacing)
    return [spacing * number for number in range(first, last + 1)]


def picture(panels: Sequence[Panel]) -> str:
    """An SVG of all panels, side by side."""
    width = WIDTH * len(panels)
    body = [line for place, panel in enumerate(panels) for line in _panel(panel, WIDTH * place)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="{width}" height="{HEIGHT}" fill="white"/>', *body, "</svg>"]) + "\n"


def _panel(panel: Panel, left: int) -> Iterator[str]:
    points = [point for line in panel.lines.values() for point in line]
    x_ticks, y_ticks = round_ticks([x for x, _ in points]), round_ticks([y for _, y in points])
    low_x, high_x, low_y, high_y = x_ticks[0], x_ticks[-1], y_ticks[0], y_ticks[-1]

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - low_x) / ((high_x - low_x) or 1.0)
        up = (y - low_y) / ((high_y - low_y) or 1.0)
        return left + MARGIN + across * (WIDTH - 1.5 * MARGIN), HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN)

    (x0, y0), (x1, y1) = at(low_x, low_y), at(high_x, high_y)
    yield f'<rect x="{x0:.1f}" y="{y1:.1f}" width="{x1 - x0:.1f}" height="{y0 - y1:.1f}" fill="none" stroke="black"/>'
    yield f'<text x="{(x0 + x1) / 2:.1f}" y="24" text-anchor="middle" font-size="14">{panel.title}</text>'
    yield f'<text x="{(x0 + x1) / 2:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{panel.x_label}</text>'
    yield f'<text x="{left + 14}" y="{(y0 + y1) / 2:.1f}" text-anchor="middle" transform="rotate(-90 {left + 14} {(y0 + y1) / 2:.1f})">{panel.y_label}</text>'
    for x in x_ticks:
        yield f'<text x="{at(x, low_y)[0]:.1f}" y="{y0 + 16:.1f}" text-anchor="middle">{x:.6g}</text>'
    for y in y_ticks:
        yield f'<text x="{x0 - 6:.1f}" y="{at(low_x, y)[1] + 4:.1f}" text-anchor="end">{y:.6g}</text>'
    for number, (name, line) in enumerate(panel.lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in line))
        yield f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{drawn}"/>'
        yield f'<text x="{x1 - 8:.1f}" y="{y1 + 18 + 16 * number:.1f}" text-anchor="end" fill="{colour}">{name}</text>'
