"""Provisioning: is the planner exact, how fast, how far are the other methods? `nox -s provision` writes results/published/provision and the
tables of docs/provision.md, and says which bars are met; `-- again` does the last two for what is kept, names of parts make only those.
Nothing runs on devices: costs are those of the model. Every row is written as soon as it is known.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autotune.provision.answer import answer, comparison_data
from autotune.provision.assignment import best_rate
from autotune.provision.exact import cheapest, load_compiled
from autotune.provision.judge import Asked
from autotune.provision.methods import METHODS
from autotune.provision.problem import Problem
from autotune.provision.problem_file import problem_of
from autotune.results.store.environment import describe_environment
from tests.autotune.provision.instances import assignments, random_problem
from tests.benchmarks import provision_networks as networks
from tests.benchmarks.published_table import put_between

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "results" / "published" / "provision"
PAGE = ROOT / "docs" / "provision.md"
SIZES = ((2, 8), (2, 12), (2, 15), (3, 6), (3, 8), (3, 10), (4, 5), (4, 7), (5, 6), (6, 6), (9, 5))
"""Types and layers of problems that brute force can solve."""
PER_SIZE, SPEED_RUNS, GRADED = 10, 10, 50
HEURISTICS = tuple(name for name in METHODS if name not in ("exact", "brute-force"))
Row = dict[str, Any]


def exactness() -> Iterator[Row]:
    """Every size, with and without limits, against every assignment."""
    for types, layers in SIZES:
        for limited in (False, True):
            for seed in range(PER_SIZE):
                problem = random_problem(
                    1000 * layers + seed, types=types, layers=layers, limited=limited, floor=seed % 4 != 0
                )
                started = time.perf_counter()
                found = cheapest(problem)
                seconds = time.perf_counter() - started
                least = min(best_rate(problem, np.array(kinds))[0] for kinds in assignments(problem))
                gap = 0.0 if found.rate == least else abs(found.rate / least - 1)
                facts = {"types": types, "layers": layers, "limited": limited, "seed": seed, "proven": found.proven}
                yield facts | {"gap": gap, "feasible": math.isfinite(least), "seconds": seconds}


def speed() -> Iterator[Row]:
    """64 layers on 8 types, random times."""
    load_compiled(limited=True)
    for limited in (False, True):
        for seed in range(SPEED_RUNS):
            problem = random_problem(seed, types=8, layers=64, limited=limited)
            started = time.perf_counter()
            found = cheapest(problem)
            seconds = time.perf_counter() - started
            yield {
                "limited": limited,
                "seed": seed,
                "proven": found.proven,
                "ranges": found.num_ranges,
                "seconds": seconds,
            }


def methods() -> Iterator[Row]:
    """All methods on the three networks."""
    for name in networks.NETWORKS:
        problem = problem_of(networks.network(name))
        tried = [one for one in METHODS if one != "brute-force" or len(problem.types) ** problem.num_layers <= 59_049]
        answers = [answer(Asked(problem=problem), method) for method in tried]
        for row in comparison_data(problem, answers):
            yield {"network": name, "layers": problem.num_layers} | row


def graded() -> Iterator[Row]:
    """Fifty drawn networks, half of them with limits, that nothing was adjusted to."""
    yield from _grades([networks.drawn(seed, limited=seed % 2 == 1) for seed in range(GRADED)])


def _grades(problems: list[Problem]) -> Iterator[Row]:
    """One method after another, the slowest last."""
    least = [answer(Asked(problem=problem), "exact").plan for problem in problems]
    for method in sorted(HEURISTICS, key="bayes".__eq__):
        for seed, (problem, optimum) in enumerate(zip(problems, least, strict=True)):
            assert optimum is not None
            found = answer(Asked(problem=problem), method)
            gap = None if found.plan is None else max(found.plan.cost / optimum.cost - 1, 0.0)
            yield {"seed": seed, "method": method, "gap": gap, "seconds": found.seconds}


def exactness_table(rows: list[Row]) -> str:
    lines = [
        "| types | layers | limits | problems | of them feasible | largest difference | proven |",
        "|---|---|---|---|---|---|---|",
    ]
    for types, layers in SIZES:
        for limited in (False, True):
            own = [row for row in rows if (row["types"], row["layers"], row["limited"]) == (types, layers, limited)]
            if own:
                facts = (types, layers, "yes" if limited else "no", len(own), sum(row["feasible"] for row in own))
                worst, proven = max(row["gap"] for row in own), sum(row["proven"] for row in own)
                lines.append(f"| {' | '.join(map(str, facts))} | {worst:.1g} | {proven} |")
    return "\n".join(lines)


def speed_table(rows: list[Row]) -> str:
    lines = ["| 64 layers, 8 types | problems | median s | slowest s | proven |", "|---|---|---|---|---|"]
    for limited in (False, True):
        own = [row for row in rows if row["limited"] is limited]
        if own:
            times = [row["seconds"] for row in own]
            name = "with limits" if limited else "without limits"
            proven = sum(row["proven"] for row in own)
            lines.append(f"| {name} | {len(own)} | {statistics.median(times):.3f} | {max(times):.3f} | {proven} |")
    return "\n".join(lines)


def methods_table(rows: list[Row]) -> str:
    names = list(dict.fromkeys(row["network"] for row in rows))
    lines = [
        f"| method | {' | '.join(f'{name}: cost | gap | s' for name in names)} |",
        "|---" * (1 + 3 * len(names)) + "|",
    ]
    for method in METHODS:
        cells = [_method_cells(rows, name, method) for name in names]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _method_cells(rows: list[Row], network: str, method: str) -> str:
    row = next((row for row in rows if (row["network"], row["method"]) == (network, method)), None)
    if row is None:
        return "not run | |"
    if row["cost"] is None:
        return f"misses the floor | | {row['seconds']:.2g}"
    return f"{row['cost']:.4g} | {100 * row['gap']:.1f} % | {row['seconds']:.2g}"


def graded_table(rows: list[Row]) -> str:
    lines = ["| method | solved | mean gap | largest gap | within 5 % | median s |", "|---|---|---|---|---|---|"]
    for method in HEURISTICS:
        own = [row for row in rows if row["method"] == method]
        gaps = [row["gap"] for row in own if row["gap"] is not None]
        if gaps:
            solved, near = f"{len(gaps)} of {len(own)}", sum(gap <= 0.05 for gap in gaps)
            figures = f"{100 * statistics.mean(gaps):.1f} % | {100 * max(gaps):.1f} % | {near} of {len(own)}"
            seconds = statistics.median(row["seconds"] for row in own)
            lines.append(f"| {method} | {solved} | {figures} | {seconds:.2g} |")
    return "\n".join(lines)


Verdicts = list[tuple[str, bool]]


def exactness_bars(rows: list[Row]) -> Verdicts:
    return [
        (f"{len(rows)} problems of at least 200", len(rows) >= 200),
        ("exact = brute force, proven", all(row["gap"] <= 1e-9 and row["proven"] for row in rows)),
    ]


def speed_bars(rows: list[Row]) -> Verdicts:
    return [
        (
            "64 x 8 in at most 1 s without limits",
            all(row["seconds"] <= 1 and row["proven"] for row in rows if not row["limited"]),
        ),
        (
            "64 x 8 in at most 30 s with limits",
            all(row["seconds"] <= 30 and row["proven"] for row in rows if row["limited"]),
        ),
    ]


def graded_bars(rows: list[Row]) -> Verdicts:
    own = [row for row in rows if row["method"] == "rl"]
    return [
        (
            f"the policy within 5 % on {len(own)} networks",
            all(row["gap"] is not None and row["gap"] <= 0.05 for row in own),
        )
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A question, how its answer is shown, and what it must be."""

    rows: Callable[[], Iterator[Row]]
    table: Callable[[list[Row]], str]
    bars: Callable[[list[Row]], Verdicts]


PARTS = {
    "exactness": Part(rows=exactness, table=exactness_table, bars=exactness_bars),
    "speed": Part(rows=speed, table=speed_table, bars=speed_bars),
    "methods": Part(rows=methods, table=methods_table, bars=lambda _: []),
    "graded": Part(rows=graded, table=graded_table, bars=graded_bars),
}


def make(name: str) -> None:
    """All rows of a part, on disk one by one."""
    kept: dict[str, Any] = {
        "command": f"nox -s provision -- {name}",
        "label": "computed: one thread, costs of the model of docs/provision.md",
        "environment": describe_environment(),
        "rows": [],
    }
    for row in PARTS[name].rows():
        kept["rows"].append(row)
        (PUBLISHED / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
        print(name, json.dumps(row), flush=True)


def show(name: str) -> int:
    """The table of a part in the page, and its verdicts; how many bars are missed."""
    path = PUBLISHED / f"{name}.json"
    if not path.exists():
        print(f"{name}: not run")
        return 1
    rows, part = json.loads(path.read_text())["rows"], PARTS[name]
    put_between(PAGE, f"<!-- {name} -->", f"<!-- /{name} -->", part.table(rows))
    verdicts = part.bars(rows)
    for said, met in verdicts:
        print(f"{'met   ' if met else 'MISSED'} {name}: {said}")
    return sum(not met for _, met in verdicts)


def main(arguments: list[str]) -> None:
    """All parts, or those named; `again`: none of them anew."""
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    for name in [part for part in arguments if part in PARTS] or ([] if arguments == ["again"] else list(PARTS)):
        make(name)
    print(f"{sum(show(name) for name in PARTS)} bars missed")


if __name__ == "__main__":
    main(sys.argv[1:])
