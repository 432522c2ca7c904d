"""What placements of groups of ops gain by prediction, how near the search comes to the optimum, and how long it takes.

`python -m tests.benchmarks.placement_search` measures all, with `optimum`, `gain` or `speed` only that part. Each row is kept as it is
made, so an interrupted run goes on; `-- again` begins anew.

- **optimum**: random models and clusters on which the exact search is quick: the portfolio's objective over the optimum.
- **gain**: models on clusters: the best data-parallel plan and pipeline that `autotune plan --placement off` finds, balanced data
  parallelism in buckets of its own choice, and the best placement.
- **speed**: 16 and 64 devices in islands of 4 and 1,024 in islands of 8, 40 groups.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autotune.jobs.planning.plan import plan
from autotune.jobs.predict import make_predictors
from autotune.jobs.question import Aim, Question
from autotune.placement.groups.methods import PLACEMENT_METHODS
from autotune.placement.groups.portfolio import Search, find_placement
from autotune.results.store.environment import describe_environment
from autotune.results.text.numbers import plan_summary
from autotune.workloads.cluster import Cluster, Device, Host
from autotune.workloads.plan import default_plan
from autotune.workloads.topology import Link
from tests.autotune.placement.groups.cases import random_graph, random_problem, simulator_of

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "results" / "published" / "placement"
SIMULATIONS = 200
NUM_CASES = 100
MODELS = ("mlp", "vgg", "resnet", "gpt", "vgg-tiny", "gpt-tiny")
CLUSTERS = (
    "mixed4",
    "slow-link4",
    "uniform4",
    "mixed-both4",
    "two-fast-two-slow",
    "two-hosts-of-two",
    "two-beside-four",
)
BARS_S = {16: 60.0, 64: 300.0, 1024: 600.0}
FAST, SLOW = 4e12, 1e12


def optimum(seed: int) -> dict[str, Any]:
    exact = random_problem(seed, 10**6)
    PLACEMENT_METHODS["exact"].search(exact, 0)
    over, best = exact.judged[exact.best]
    row: dict[str, Any] = {"seed": seed, "fits": over == 0, "optimum_s": best}
    for method in PLACEMENT_METHODS:
        if method != "exact":
            problem = random_problem(seed, SIMULATIONS)
            PLACEMENT_METHODS[method].search(problem, seed)
            found = problem.judged[problem.best]
            row[method] = found[1] / best if found[0] == 0 else None
    return row


def gain(cell: str) -> dict[str, Any]:
    model, _, cluster = cell.partition(" on ")
    question = Question(workload=model, clusters=(cluster,), results=ROOT / "results" / "data", seed=0)
    (predictor,) = make_predictors(question)
    without = plan(question, predictor, Aim())
    balanced_s = predictor.simulator.step_s(default_plan(predictor.balanced_split()))
    placing = predictor.placing()
    begun = time.perf_counter()
    found = find_placement(placing.simulator, Search(simulations=SIMULATIONS))
    return {
        "cell": cell,
        "ddp_s": without.default.step_s,
        "balanced_ddp_s": balanced_s,
        "without_s": without.forecast.step_s,
        "without": plan_summary(without.forecast.plan),
        "placed_s": found.value if found.over == 0 else None,
        "placed": plan_summary(found.plan),
        "limit_s": placing.simulator.forecast(found.plan).limit.step_s,  # type: ignore[union-attr]
        "search_s": time.perf_counter() - begun,
    }


def speed(size: int) -> dict[str, Any]:
    """60 ops in 40 groups."""
    generator, per_host = random.Random(size), 8 if size > 64 else 4
    hosts = tuple(
        Host(
            name=f"host{number}",
            devices=(Device(name=f"kind{number % 3}", flops_per_s=1e12 * 2 ** (number % 3), memory_bytes_per_s=1e11),)
            * per_host,
            link=Link(up_bytes_per_s=1e9, down_bytes_per_s=1e9, latency_s=1e-5),
        )
        for number in range(size // per_host)
    )
    cluster = Cluster(name=f"islands{size}", hosts=hosts, emulation="none")
    simulator = simulator_of(random_graph(generator, 60), cluster, 4 * size)
    begun = time.perf_counter()
    found = find_placement(simulator, Search(simulations=SIMULATIONS))
    return {
        "devices": size,
        "seconds": time.perf_counter() - begun,
        "bar_s": BARS_S[size],
        "simulations": found.num_simulations,
        "step_s": found.value,
    }


PARTS: dict[str, tuple[Callable[[Any], dict[str, Any]], tuple[Any, ...], str]] = {
    "optimum": (optimum, tuple(range(NUM_CASES)), "seed"),
    "gain": (gain, tuple(f"{model} on {cluster}" for model in MODELS for cluster in CLUSTERS), "cell"),
    "speed": (speed, tuple(BARS_S), "devices"),
}


def main(arguments: list[str]) -> int:
    chosen = [name for name in arguments if name in PARTS] or list(PARTS)
    for name in chosen:
        path = KEPT / f"{name}.json"
        rows = [] if "again" in arguments or not path.exists() else json.loads(path.read_text())["rows"]
        measure, cases, key = PARTS[name]
        for case in cases:
            if not any(row[key] == case for row in rows):
                rows.append(measure(case))
                _keep(path, name, rows)
                print(json.dumps(rows[-1]))
        for line in summary(name, rows):
            print(line)
    return 0


def summary(name: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    """One line for each figure."""
    if name == "optimum":
        fitting = [row for row in rows if row["fits"]]
        for method in (one for one in PLACEMENT_METHODS if one != "exact"):
            ratios = sorted(row[method] or float("inf") for row in fitting)
            near = sum(ratio <= 1.05 for ratio in ratios)
            yield f"{method}: within 5 % of the optimum on {near} of {len(ratios)}, worst {ratios[-1]:.2f}"
    elif name == "gain":
        for row in rows:
            placed = row["placed_s"] or float("inf")
            yield (
                f"{row['cell']}: {row['ddp_s'] / placed:.2f} x DDP, {row['balanced_ddp_s'] / placed:.2f} x balanced DDP, "
                f"{row['without_s'] / placed:.2f} x the best other plan"
            )
    else:
        for row in rows:
            yield f"{row['devices']} devices: {row['seconds']:.0f} s, at most {row['bar_s']:.0f}"


def _keep(path: Path, name: str, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    label = "measured on this machine" if name == "speed" else "predicted, not measured"
    kept = {
        "command": f"nox -s placement_search -- {name}",
        "label": label,
        "environment": describe_environment(),
        "simulations": SIMULATIONS,
        "rows": rows,
    }
    path.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
