"""The grades of the shipped meta-network as a table in docs/online.md: `python -m tests.benchmarks.meta_network_table`."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from autotune.online.meta_network import CARD
from tests.benchmarks.prediction import ROOT
from tests.benchmarks.published_table import put_between

PAGE = ROOT / "docs" / "online.md"
BEGIN, END = "<!-- meta-network -->", "<!-- /meta-network -->"


def table(grades: dict[str, dict[str, dict[str, Any]]]) -> str:
    """A row per scorer, a column per population: Spearman's correlation, then mean and 90th percentile of the regret."""
    lines = ["| chosen by | " + " | ".join(grades) + " |", "|---" * (1 + len(grades)) + "|"]
    for name in next(iter(grades.values())):
        cells = [_cell(grades[population][name]) for population in grades]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(entry: dict[str, Any]) -> str:
    correlation = f"{entry['spearman']:.2f}; " if entry["spearman"] is not None else ""
    return f"{correlation}{entry['mean_regret']:.1%} ({entry['p90_regret']:.0%})"


def main() -> None:
    card = (files("autotune.online") / "weights" / CARD).read_text(encoding="utf-8")
    put_between(PAGE, BEGIN, END, table(json.loads(card)["grades"]))


if __name__ == "__main__":
    main()
