"""The table of docs/schedules.md of what `nox -s pipelines` measured."""

from __future__ import annotations

import json
from pathlib import Path

from autotune.results.judge.stats import speedup
from tests.benchmarks.published_table import put_between

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "results" / "published" / "pipelines" / "uniform4.json"


def table() -> str:
    rows = json.loads(KEPT.read_text())["rows"]
    slowest = next(row for row in rows if row["schedule"] == "1f1b")["rounds_s"]
    lines = []
    for row in rows:
        memory = max(abs(a / b - 1) for a, b in zip(row["metered_bytes"], row["predicted_bytes"], strict=True))
        ratio = speedup(slowest, row["rounds_s"])
        beside = "" if row["schedule"] == "1f1b" else f"{ratio.value:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"
        lines.append(
            f"| {row['schedule']} | {1e3 * row['predicted_s']:.0f} | {1e3 * row['measured_s']:.0f} | {row['off']:+.1%} | {beside} "
            f"| {max(row['metered_bytes']) / 2**20:.1f} | {memory:.1%} |"
        )
    head = (
        "| schedule | ms/step simulated | measured | off by | as fast as 1F1B | memory MiB, metered | off by at most |"
    )
    return "\n".join([head, "|---" * 7 + "|", *lines])


if __name__ == "__main__":
    put_between(ROOT / "docs" / "schedules.md", "<!-- pipelines -->", "<!-- /pipelines -->", table())
