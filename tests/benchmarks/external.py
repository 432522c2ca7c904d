"""The simulator, as it is, against measurements of others: `python -m tests.benchmarks.external DATA_DIR`.

DATA_DIR holds files that `autotune import` reads, in folders named for their source. Rows of measured steps
(`MODEL-CLUSTER.csv`, or `MODEL/placements-CLUSTER.csv`) are scored: two rows of each kind of placement are fitted, by the rule of
`autotune.calibrate.fit_steps.calibration_rows`, and all others predicted. Models measured on the same cluster are fitted
together. Op graphs have times but no measured plans: what can be said of them is that they are read and planned.

Only errors and summaries are written, none of the data.
"""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autotune.calibrate.fit_steps import Measured, compute_line
from autotune.jobs.planning.plan import plan
from autotune.jobs.predict import make_predictors
from autotune.jobs.question import Aim, Question
from autotune.results.imports.formats import STEPS, detect, import_files
from autotune.results.imports.imported import Asked
from autotune.results.imports.step_rows import KINDS, StepRow, read_steps
from autotune.results.store.store import write_json
from autotune.results.text.numbers import format_percent
from autotune.simulate.simulator import Simulator
from autotune.workloads.errors import AutotuneError
from tests.benchmarks.external_scores import (
    Pair,
    calibration_rows,
    choices,
    drawn,
    ends,
    joined,
    naive,
    ours,
    ours_alone,
    pairs_of,
    profiled,
    summary,
)

PUBLISHED = Path("results") / "published" / "external" / "external.json"
DOCS = Path("docs") / "simulator.md"
BEGIN, END = "<!-- external -->\n", "<!-- /external -->"
COMMAND = "nox -s external -- DATA_DIR"
RULE = "of each kind: the fewest GPUs at their smallest number of samples, and the most GPUs at their largest"
NUM_DRAWS = 5
PREFIXES = ("placements-", "scalability-")
CLUSTER = """
[device.gpu]

[[host]]
name = "host"
count = 2
devices = ["2 x gpu"]
uplink = "10 Gbit/s"
downlink = "10 Gbit/s"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, metavar="DATA_DIR")
    parser.add_argument("--kept", type=Path, default=PUBLISHED, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="without other rules for the fitted rows")
    options = parser.parse_args()
    steps, graphs, refused = found_files(options.data)
    result: dict[str, Any] = {
        "label": "external",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "command": COMMAND,
        "rule": RULE,
        "steps": [score_steps(source, files, quick=options.quick) for source, files in steps.items()],
        "graphs": [score_graph(source, path) for source, path in graphs],
        "not_read": refused,
    }
    options.kept.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.kept, result)
    text = "\n".join(table(result))
    sys.stdout.write(text + "\n")
    if options.kept == PUBLISHED:
        write_table(DOCS, text)
    return 0


def found_files(folder: Path) -> tuple[dict[str, dict[str, Path]], list[tuple[str, Path]], list[str]]:
    """Files of steps by source and model, op graphs with their source, and what is of no format."""
    steps: dict[str, dict[str, Path]] = {}
    graphs, refused = [], []
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix not in (".csv", ".txt", ".json"):
            continue
        try:
            kind = detect([path])
        except AutotuneError:
            refused.append(path.name)
            continue
        if kind == STEPS:
            source, model = names_of(folder, path)
            steps.setdefault(source, {})[model] = path
        else:
            graphs.append((source_of(folder, path), path))
    return steps, graphs, refused


def source_of(folder: Path, path: Path) -> str:
    parts = path.relative_to(folder).parts
    return parts[0] if len(parts) > 1 else folder.name


def names_of(folder: Path, path: Path) -> tuple[str, str]:
    """Source with cluster, and model."""
    source = source_of(folder, path)
    for prefix in PREFIXES:
        if path.stem.startswith(prefix):
            return f"{source}, {path.stem}", path.parent.name
    model, _, cluster = path.stem.rpartition("-")
    return (f"{source}, {cluster}", model) if model else (source, path.stem)


def score_steps(source: str, files: dict[str, Path], *, quick: bool) -> dict[str, Any]:
    """Scores of all models of one cluster."""
    rows: dict[str, list[StepRow]] = {}
    failed: dict[str, str] = {}
    for model, path in files.items():
        try:
            rows[model] = read_steps(path)
            compute_line(Measured(name=model, rows=tuple(rows[model])))
        except AutotuneError as error:
            rows.pop(model, None)
            failed[model] = str(error).replace(str(path), path.name)
    if not rows:
        return {"source": source, "failed": failed}
    predicted, baseline = pairs_of(rows, calibration_rows, ours), pairs_of(rows, calibration_rows, naive)
    return {
        "source": source,
        "failed": failed,
        "memory": "not in the data",
        "own_model": "not in the data",
        "fitted_rows": {model: len(calibration_rows(of)) for model, of in rows.items()},
        "all": scores(joined(predicted), joined(baseline)),
        "models": {model: scores(predicted[model], baseline[model]) for model in rows},
        "kinds": {kind: scores(*(of_kind(one, kind) for one in (predicted, baseline))) for kind in KINDS},
        "choices": {
            "simulator": _mean([choices(pairs) for pairs in predicted.values()]),
            "naive": _mean([choices(pairs) for pairs in baseline.values()]),
        },
        "other_rows": {} if quick else dict(other_rules(rows)),
    }


def of_kind(pairs: dict[str, list[Pair]], kind: str) -> list[Pair]:
    return [pair for pair in joined(pairs) if pair.row.kind == kind]


def scores(predicted: Sequence[Pair], baseline: Sequence[Pair]) -> dict[str, Any]:
    return {"simulator": summary(predicted), "naive": summary(baseline)} if len(predicted) > 1 else {}


def _mean(found: Sequence[dict[str, float | int]]) -> dict[str, float]:
    """Over models that have alternatives; of a worst regret the worst."""
    known = [one for one in found if one["cells"]]
    if not known:
        return {}
    return {
        key: (max if key.startswith("worst") else sum if key == "cells" else statistics.fmean)(
            one[key] for one in known
        )
        for key in known[0]
    }


def other_rules(rows: dict[str, list[StepRow]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What comes of other rows, chosen before they were scored."""
    yield "each model from its own rows only", summary(joined(pairs_of(rows, calibration_rows, ours_alone)))
    yield "and all steps of one GPU", summary(joined(pairs_of(rows, profiled, ours)))
    yield "both at the smallest number of samples", summary(joined(pairs_of(rows, ends(min, min), ours)))
    yield "fewest GPUs at the largest, most at the smallest", summary(joined(pairs_of(rows, ends(max, min), ours)))
    yield "both at the largest number of samples", summary(joined(pairs_of(rows, ends(max, max), ours)))
    for seed in range(NUM_DRAWS):
        yield f"two rows at random, draw {seed}", summary(joined(pairs_of(rows, drawn(seed), ours)))


def score_graph(source: str, path: Path) -> dict[str, Any]:
    """Read and plan an op graph. One sample is one pass of its profile."""
    entry: dict[str, Any] = {"source": source, "model": path.stem, "errors": "no measured plans in the data"}
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = import_files(Asked(files=(path,), device="gpu", samples=1, global_batch=16))
            write_json(Path(folder) / "graph.json", found.graph)
            write_json(Path(folder) / "profile.json", found.profile)
            (Path(folder) / "cluster.toml").write_text(CLUSTER, encoding="utf-8")
            question = Question(
                workload=str(Path(folder) / "graph.json"),
                clusters=(str(Path(folder) / "cluster.toml"),),
                profiles=(Path(folder) / "profile.json",),
                results=Path(folder),
                transports=("gloo",),
            )
            predictor = make_predictors(question)[-1]
            planned = plan(question, predictor, Aim(evaluations=1000))
        except AutotuneError as error:
            return entry | {"refused": str(error).replace(str(path), path.name)}
    best, simulator = planned.forecast.plan, predictor.simulator
    return entry | {
        "ops": len(found.graph.ops),
        "pass_s": found.profile.ranks[0].compute.seconds(1),
        "gradient_bytes": simulator.graph.param_bytes,
        "ddp_predicted_s": planned.default.step_s,
        "plan_predicted_s": planned.forecast.step_s,
        "stages": len(best.pipeline.first_ops) if best.pipeline else 1,
        "sums_to_pass": _whole_s(simulator),
    }


def _whole_s(simulator: Simulator) -> float:

    forward, backward = simulator.costs.passes(np.ones(len(simulator.costs.cluster.devices)))
    return float(forward[0].sum() + backward[0].sum())


def table(result: dict[str, Any]) -> Iterator[str]:
    """The tables of docs/simulator.md."""
    for source in result["steps"]:
        yield from _steps_table(source, result)
    if result["graphs"]:
        yield from _graphs_table(result["graphs"])


def _steps_table(source: dict[str, Any], result: dict[str, Any]) -> Iterator[str]:
    yield f"Label: external. {source['source']}, {result['date']}, `{result['command']}`."
    yield ""
    for model, why in source["failed"].items():
        yield f"{model} was not scored: {why}"
    if "all" not in source:
        return
    yield "| rows | number | median error | p90 | worst | rank correlation | naive: median, p90, worst |"
    yield "|---|---|---|---|---|---|---|"
    yield _row("**all**", source["all"])
    for name, entry in [*source["models"].items(), *source["kinds"].items()]:
        if entry:
            yield _row(name, entry)
    yield ""
    if source["choices"]["simulator"]:
        yield "| placements of equally many GPUs | cells | rank correlation | first-ranked loses | worst | best of two loses |"
        yield "|---|---|---|---|---|---|"
        for name, entry in source["choices"].items():
            cells = (entry[key] for key in ("regret_of_first", "worst_regret_of_first", "regret_of_best_of_two"))
            losses = " | ".join(format_percent(value) for value in cells)
            yield f"| {name} | {entry['cells']:.0f} | {entry['rank_correlation']:.2f} | {losses} |"
        any_one = format_percent(source["choices"]["simulator"]["regret_of_any"])
        yield f"| the median placement | | | {any_one} | | |"
        yield ""
    if source["other_rows"]:
        yield "| fitted rows | median error | p90 | worst |"
        yield "|---|---|---|---|"
        for name, entry in source["other_rows"].items():
            yield f"| {name} | {_percents(entry)} |"
        yield ""


def _row(name: str, entry: dict[str, Any]) -> str:
    mine, other = entry["simulator"], entry["naive"]
    cells = _percents(mine)
    return f"| {name} | {mine['rows']} | {cells} | {mine['rank_correlation']:.2f} | {_percents(other).replace(' | ', ', ')} |"


def _percents(entry: dict[str, Any]) -> str:
    return " | ".join(f"{100 * entry[key]:.1f} %" for key in ("median_error", "p90_error", "worst_error"))


def _graphs_table(graphs: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "Op graphs, planned on two hosts of two GPUs with 10 Gbit/s, 16 passes a step; nothing was measured to compare with:"
    yield ""
    yield "| source | model | ops | pass | gradients | DDP, predicted | plan, predicted | stages |"
    yield "|---|---|---|---|---|---|---|---|"
    for entry in graphs:
        if "refused" in entry:
            yield f"| {entry['source']} | {entry['model']} | refused: {entry['refused']} | | | | | |"
            continue
        times = " | ".join(f"{1e3 * entry[key]:.0f} ms" for key in ("ddp_predicted_s", "plan_predicted_s"))
        size = f"{entry['gradient_bytes'] / 1e6:.0f} MB"
        yield (
            f"| {entry['source']} | {entry['model']} | {entry['ops']} | {1e3 * entry['pass_s']:.0f} ms | {size} "
            f"| {times} | {entry['stages']} |"
        )
    yield ""


def write_table(page: Path, text: str) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(before + BEGIN + text.strip("\n") + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
