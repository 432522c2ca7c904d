"""Does training come out the same while the split changes? `python -m tests.benchmarks.convergence [again]`.

Final loss (mean over the last epoch) and accuracy on held-out data of `digits` and `text` on four ranks, under the even split
and with a random split every few steps, for five seeds; the same seed begins with the same model and the same batches. What
differs between the two is rounding, as one run of each in float64 shows; what differs between seeds says how large that is.
`again`: of the kept runs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from autotune.results.store.environment import describe_environment
from tests.benchmarks.published_table import put_between
from tests.mpi.launch import ROOT, mpirun

PROGRAM = ROOT / "tests" / "benchmarks" / "programs" / "convergence_runs.py"
FOLDER = ROOT / "results" / "published" / "convergence"
PAGE = ROOT / "docs" / "uneven-batches.md"
EPOCHS = {"digits": 8, "text": 4}
NUM_RANKS, NUM_SEEDS = 4, 5


def runs(workload: str, num_seeds: int, dtype: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = [workload, str(EPOCHS[workload]), str(num_seeds), dtype]
        done = mpirun(NUM_RANKS, str(PROGRAM), *arguments, cwd=Path(folder), timeout_s=1500)
    if done.code:
        raise RuntimeError(done.err)
    return [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]


def measure(workload: str) -> dict[str, Any]:
    return {
        "command": "nox -s convergence",
        "label": "measured on this machine",
        "environment": describe_environment(),
        "runs": runs(workload, NUM_SEEDS, "float32"),
        "exact": runs(workload, 1, "float64"),
    }


def row(workload: str, document: dict[str, Any]) -> str:
    """Means and spreads over seeds, and the largest difference of the two with the same seed."""
    found = document["runs"]
    by_split = {split: [run for run in found if run["split"] == split] for split in ("even", "changing")}
    cells = [workload, str(found[0]["num_steps"]), f"{fmean(run['num_changes'] for run in by_split['changing']):.0f}"]
    for what, scale, form in (("loss", 1, ".4f"), ("accuracy", 100, ".2f")):
        values = {split: [scale * run[what] for run in found] for split, found in by_split.items()}
        cells += [f"{fmean(found):{form}} ± {stdev(found):{form}}" for found in values.values()]
        cells.append(f"{max(abs(a - b) for a, b in zip(*values.values(), strict=True)):.2g}")
    exact = [run["loss"] for run in document["exact"]]
    return "| " + " | ".join([*cells, f"{abs(exact[0] - exact[1]):.1g}"]) + " |"


def table(documents: dict[str, dict[str, Any]]) -> str:
    head = (
        "| workload | steps | changes of the split | loss, even | loss, changing | largest difference, same seed "
        "| accuracy %, even | accuracy %, changing | largest difference, same seed "
        "| difference of the loss in float64 |"
    )
    rows = [row(workload, document) for workload, document in documents.items()]
    label = next(iter(documents.values()))["label"]
    foot = f"Mean and standard deviation over {NUM_SEEDS} seeds, {NUM_RANKS} ranks, float32 but for the last column (one seed); {label}, by `nox -s convergence`."
    return "\n".join([head, "|---|---|---|---|---|---|---|---|---|---|", *rows, "", foot])


def main(*, again: bool) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for workload in () if again else EPOCHS:
        (FOLDER / f"{workload}.json").write_text(json.dumps(measure(workload), indent=1) + "\n")
    found = {workload: FOLDER / f"{workload}.json" for workload in EPOCHS}
    documents = {workload: json.loads(path.read_text()) for workload, path in found.items() if path.exists()}
    put_between(PAGE, "<!-- convergence -->", "<!-- /convergence -->", table(documents))


if __name__ == "__main__":
    main(again=sys.argv[1:] == ["again"])
