"""Predicted against measured as a picture: both axes logarithmic, the diagonal is a perfect prediction, the band 8 %."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

SIZE, MARGIN = 560, 60
TICKS_S = (0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0)
COLOURS = {"vgg": "#1f77b4", "gpt": "#d62728", "resnet": "#2ca02c"}
BAND = 0.08


def scatter(points: Sequence[tuple[str, float, float]], title: str) -> str:
    """An SVG of (workload, predicted seconds, measured seconds)."""
    values = [seconds for _, *both in points for seconds in both]
    low, high = min(values) / 1.1, max(values) * 1.1

    def place(seconds: float) -> float:
        return MARGIN + (SIZE - 2 * MARGIN) * math.log(seconds / low) / math.log(high / low)

    def at(measured: float, predicted: float) -> str:
        return f"{place(measured):.1f},{SIZE - place(predicted):.1f}"

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" font-family="sans-serif" font-size="13">',
        f'<rect width="{SIZE}" height="{SIZE}" fill="white"/>',
        f'<text x="{SIZE / 2}" y="24" text-anchor="middle" font-size="15">{title}</text>',
        (
            f'<polygon fill="#eeeeee" points="{at(low, low * (1 + BAND))} {at(high / (1 + BAND), high)} '
            f'{at(high, high)} {at(high, high * (1 - BAND))} {at(low / (1 - BAND), low)} {at(low, low)}"/>'
        ),
        f'<polyline stroke="#888888" points="{at(low, low)} {at(high, high)}"/>',
        *_axes(low, high, place),
        *(
            f'<circle cx="{place(measured):.1f}" cy="{SIZE - place(predicted):.1f}" r="4" fill-opacity="0.7" '
            f'fill="{COLOURS.get(workload, "#555555")}"/>'
            for workload, predicted, measured in points
        ),
        *_legend(sorted({workload for workload, _, _ in points})),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _axes(low: float, high: float, place: object) -> Iterator[str]:
    assert callable(place)
    near, far = MARGIN, SIZE - MARGIN
    yield f'<rect x="{near}" y="{near}" width="{far - near}" height="{far - near}" fill="none" stroke="black"/>'
    for seconds in TICKS_S:
        if low < seconds < high:
            x = place(seconds)
            text = f"{1000 * seconds:g}"
            yield f'<line x1="{x:.1f}" y1="{far}" x2="{x:.1f}" y2="{far + 5}" stroke="black"/>'
            yield f'<text x="{x:.1f}" y="{far + 20}" text-anchor="middle">{text}</text>'
            yield f'<line x1="{near - 5}" y1="{SIZE - x:.1f}" x2="{near}" y2="{SIZE - x:.1f}" stroke="black"/>'
            yield f'<text x="{near - 9}" y="{SIZE - x + 5:.1f}" text-anchor="end">{text}</text>'
    yield f'<text x="{SIZE / 2}" y="{SIZE - 14}" text-anchor="middle">measured, ms a step</text>'
    yield (
        f'<text x="18" y="{SIZE / 2}" text-anchor="middle" transform="rotate(-90 18 {SIZE / 2})">predicted, ms a step</text>'
    )


def _legend(workloads: Sequence[str]) -> Iterator[str]:
    for row, workload in enumerate(workloads):
        y = MARGIN + 20 + 20 * row
        yield f'<circle cx="{MARGIN + 16}" cy="{y - 4}" r="4" fill="{COLOURS.get(workload, "#555555")}"/>'
        yield f'<text x="{MARGIN + 28}" y="{y}">{workload}</text>'
