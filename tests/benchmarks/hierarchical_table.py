"""The table of docs/scheduling.md of what `nox -s hierarchical` measured."""

from __future__ import annotations

import json
from pathlib import Path

from tests.benchmarks.published_table import put_between

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "results" / "published" / "hierarchical"
LABELS = {"emulated": "emulated", "lab, paced devices": "lab"}


def table() -> str:
    """A row for each cluster and number of tensors in flight."""
    lines = [
        "| hosts | label | tensors in flight | ring | hierarchical (closed form) | as fast as the ring, closed form | measured |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(KEPT.glob("*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        for count, found in kept["tensors_in_flight"].items():
            ring, ours = found["ring"], found["hierarchical"]
            times = ours["times_faster_than_ring"]
            lines.append(
                f"| {kept['cluster'].removesuffix('-alike').replace('-', ' ')} | {LABELS[kept['label']]} | {count} "
                f"| {ring['median_s']:.2f} s | {ours['median_s']:.2f} s ({ours['closed_form_s']:.2f} s) "
                f"| {ring['closed_form_s'] / ours['closed_form_s']:.2f}x "
                f"| {times['value']:.2f}x ({times['low']:.2f}-{times['high']:.2f}) |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    put_between(ROOT / "docs" / "scheduling.md", "<!-- hierarchical -->", "<!-- /hierarchical -->", table())
