"""The published results as tables: `python -m tests.benchmarks.published_table docs/results.md` after `nox -s publish`.

One table has a row for each sweep, the other the sizes of the models that were trained in them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from autotune.results.store.record import BEST, DDP_DEFAULT, DDP_TUNED, current_name
from autotune.results.text.numbers import format_interval, format_percent, format_rate, format_times
from autotune.workloads.quantity import format_bytes
from autotune.workloads.registry import load_workload, split_workload

FOLDER = Path(__file__).resolve().parents[2] / "results" / "published"
BEGIN, END = "<!-- results -->", "<!-- /results -->"
HEADER = (
    "| workload | cluster | label | DDP default | tuned DDP | best plan | vs DDP default | vs tuned DDP "
    "| of the limit | CPU s/step: tuned, best | made by |\n|---|---|---|---|---|---|---|---|---|---|---|"
)
SIZES_BEGIN, SIZES_END = "<!-- sizes -->", "<!-- /sizes -->"
SIZES_HEADER = (
    "| workload | parameters | bytes of gradients | one sample | samples in the data set | global batch |\n"
    "|---|---|---|---|---|---|"
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
    compare = {current_name(entry["name"]): entry for entry in report["comparison"]}
    default, tuned, best = compare.get(DDP_DEFAULT), compare.get(DDP_TUNED), compare[BEST]
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
        f"[{Path(file).stem}](../results/published/{file})",
    ]
    return "| " + " | ".join(cells) + " |"


def _ratio(ratio: dict[str, float] | None) -> str:
    if ratio is None:
        return "-"
    return f"{format_times(ratio['value'])} ({format_interval(ratio['low'], ratio['high'])})"


def sizes_table(trained: Iterable[tuple[str, int]]) -> str:
    """The models of a table, each once. `trained`: names of workloads with the global batch they were trained with."""
    return "\n".join([SIZES_HEADER, *(_size_row(name, batch) for name, batch in sorted(set(trained)))])


def _size_row(name: str, global_batch: int) -> str:
    """Read from the workload itself: its model is built, its data set opened."""
    workload = load_workload(*split_workload(name))
    parameters, dataset = list(workload.model().parameters()), workload.dataset()
    cells = [
        name,
        f"{sum(p.numel() for p in parameters):,}",
        format_bytes(sum(p.numel() * p.element_size() for p in parameters)),
        _sample(dataset[0][0]),
        f"{len(cast('Sized', dataset)):,}",
        str(global_batch),
    ]
    return "| " + " | ".join(cells) + " |"


def _sample(inputs: Tensor) -> str:
    """An image by its shape, a sequence by its tokens."""
    if inputs.is_floating_point():
        return "image of " + " x ".join(map(str, inputs.shape))
    return f"{inputs.numel()} tokens"


def put_between(page: Path, begin: str, end: str, content: str) -> None:
    """Replace what stands between two markers."""
    text = page.read_text(encoding="utf-8")
    before, after = text.split(begin)[0], text.split(end)[1]
    page.write_text(f"{before}{begin}\n{content}\n{end}{after}", encoding="utf-8")


def write(page: Path, folder: Path = FOLDER) -> None:
    """Both tables, into the page."""
    trained = [(report["workload"], report["global_batch"]) for _, report in reports(folder)]
    put_between(page, BEGIN, END, table(folder))
    put_between(page, SIZES_BEGIN, SIZES_END, sizes_table(trained))


if __name__ == "__main__":
    write(Path(sys.argv[1] if sys.argv[1:] else "docs/results.md"))
