"""The published results as a table in the README: `python -m results.published_table README.md` after `nox -s publish`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results.units import format_interval, format_percent, format_rate, format_times

FOLDER = Path(__file__).parent / "published"
BEGIN, END = "<!-- results -->", "<!-- /results -->"
HEADER = (
    "| workload | mix | label | DDP default | DDP tuned by hand | best plan | vs DDP default | vs DDP tuned "
    "| of the limit | CPU s/step: tuned, best | made by |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def table(folder: Path = FOLDER) -> str:
    """One row per published sweep; speeds in samples/s, ratios with 95 % intervals."""
    return "\n".join([HEADER, *(row(path.name, report) for path, report in reports(folder))])


def reports(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        yield from ((path, report) for report in (data if isinstance(data, list) else [data]))


def row(file: str, report: dict[str, Any]) -> str:
    """A sweep's comparison in one line."""
    contest = {entry["name"]: entry for entry in report["contest"]}
    default, tuned, best = contest.get("DDP default"), contest.get("DDP tuned by hand"), contest["best plan"]
    limit = best["fraction_of_limit"]
    cells = [
        report["workload"],
        report["cluster"],
        report["label"],
        format_rate(default["samples_per_s"]) if default else "does not fit",
        format_rate(tuned["samples_per_s"]) if tuned else "-",
        f"{format_rate(best['samples_per_s'])}{'' if best['is_lossless'] else ' (lossy)'}",
        _ratio(best["vs_first"]),
        _ratio(best["vs_tuned"]),
        format_percent(limit) if limit else "-",
        f"{tuned['cpu_s_per_step']:.3f}, {best['cpu_s_per_step']:.3f}" if tuned else "-",
        f"[{Path(file).stem}](results/published/{file})",
    ]
    return "| " + " | ".join(cells) + " |"


def _ratio(ratio: dict[str, float] | None) -> str:
    if ratio is None:
        return "-"
    return f"{format_times(ratio['value'])} ({format_interval(ratio['low'], ratio['high'])})"


def put_between(readme: Path, begin: str, end: str, content: str) -> None:
    """Replace what stands between two markers."""
    text = readme.read_text(encoding="utf-8")
    before, after = text.split(begin)[0], text.split(end)[1]
    readme.write_text(f"{before}{begin}\n{content}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    put_between(Path(sys.argv[1]), BEGIN, END, table())
