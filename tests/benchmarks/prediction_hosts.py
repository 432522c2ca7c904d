"""The accuracy of predictions on hosts with two and four ranks: random plans, paced and in the lab, as in `prediction`.

`nox -s prediction_hosts` measures profiles first, then plans that no profile contains (needs root, some 20 minutes), and keeps
every pair under results/published/prediction-hosts. `-- paced` or `-- lab` measures one kind; `-- again` judges what is kept.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from autotune.results.store.environment import describe_environment
from autotune.results.store.store import read_json, write_json
from autotune.workloads.cluster import load_cluster
from tests.benchmarks.accuracy import Pair, summary
from tests.benchmarks.measured import MeasuredPlans
from tests.benchmarks.prediction import (
    PROGRAM,
    ROOT,
    WORKLOADS,
    in_lab,
    knob_table,
    lab,
    pairs_of,
    percent,
    profile,
    profiles_in,
)
from tests.benchmarks.published_table import put_between

CLUSTERS = ("two-hosts-of-two", "two-beside-four")
PLANS_PER_CELL = 7
KINDS = ("paced", "lab")
LABELS = {"paced": "emulated", "lab": "lab, paced devices"}
PUBLISHED = ROOT / "results" / "published" / "prediction-hosts"
PAGE = ROOT / "docs" / "simulator.md"


def paced(num_ranks: int, command: list[str]) -> None:
    flags = ["--bind-to", "none", "--allow-run-as-root", "--oversubscribe", "-n", str(num_ranks)]
    whole = [str(Path(sys.executable).with_name("mpirun")), *flags, *command]
    done = subprocess.run(whole, check=False, capture_output=True, text=True, cwd=ROOT, timeout=1200)
    if done.returncode:
        raise SystemExit(f"{' '.join(whole)}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")


def measure(kind: str, folder: Path, say: Callable[[str], None]) -> None:
    """Profiles, then plans. What is measured already is kept."""
    for cluster in CLUSTERS:
        if kind == "lab":
            with lab(cluster):
                _cells(in_lab, kind, folder, cluster, say)
        else:
            _cells(partial(paced, len(load_cluster(cluster).devices)), kind, folder, cluster, say)


def _cells(run: Callable[[list[str]], None], kind: str, folder: Path, cluster: str, say: Callable[[str], None]) -> None:
    for workload in WORKLOADS:
        out = folder / f"{workload}@{cluster}.json"
        if out.exists():
            continue
        say(f"{kind}: {workload} on {cluster}")
        profile(run, folder, workload, cluster)
        seed = f"hosts {kind}/{workload}@{cluster}"
        run([sys.executable, "-m", PROGRAM, workload, cluster, str(out), "random", str(PLANS_PER_CELL), seed])


def judge(folder: Path) -> dict[str, Any]:
    """Predictions of everything measured, by kind of run."""
    kinds: dict[str, list[Pair]] = {}
    failed: list[str] = []
    for kind in KINDS:
        for path in sorted((folder / kind).glob("*@*.json")):
            measured = read_json(MeasuredPlans, path)
            profiles = profiles_in(folder / kind, measured.workload.name, measured.cluster.name, measured.cluster.label)
            kinds.setdefault(kind, []).extend(pairs_of(measured, profiles))
            failed += [
                f"{path.stem}: {record.plan} {record.reason}" for record in measured.records if not record.step_s
            ]
    return {
        "command": "nox -s prediction_hosts",
        "environment": describe_environment(),
        "figures": {kind: summary(pairs) for kind, pairs in kinds.items()},
        "failed": failed,
        "pairs": kinds,
    }


def table(figures: dict[str, Any]) -> str:
    """What the page on the simulator says."""
    lines = [
        "| runs | plans | median error | worst | rank correlation: all, per cell | first-ranked plan loses: median, worst |",
        "|---|---|---|---|---|---|",
    ]
    for kind, found in figures.items():
        losses = found["first_ranked_loses"].values()
        worst = max(losses, key=lambda loss: loss.value)
        lines.append(
            f"| {LABELS[kind]} | {found['plans']} | {percent(found['median_error'])} | {100 * found['worst_error']:.0f} % "
            f"| {found['spearman_all']:.3f}, {found['spearman_per_cell_median']:.2f} "
            f"| {percent(median(loss.value for loss in losses))}, {percent(worst.value)} "
            f"({percent(worst.low)} to {percent(worst.high)}) |"
        )
    return "\n".join(lines)


def main() -> None:
    folder = ROOT / "results" / "data" / "prediction-hosts"
    begun = time.monotonic()
    for kind in () if sys.argv[1:] == ["again"] else sys.argv[1:] or KINDS:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        measure(
            kind, folder / kind, lambda text: sys.stderr.write(f"{(time.monotonic() - begun) / 60:.1f} min  {text}\n")
        )
    found = judge(folder)
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    write_json(PUBLISHED / "pairs.json", found)
    shown = f"{table(found['figures'])}\n\n{knob_table(found['figures'])}"
    put_between(PAGE, "<!-- prediction-hosts -->", "<!-- /prediction-hosts -->", shown)
    sys.stdout.write("\n".join([shown, *(f"not measured: {text}" for text in found["failed"])]) + "\n")


if __name__ == "__main__":
    main()
