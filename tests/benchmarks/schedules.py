"""Pipeline schedules: how fast they are found, how good they are. `nox -s schedules` writes results/published/schedules and the
tables of docs/schedules.md, and says which bars are met; `-- again` does the last two for what is kept, names of parts make only those.
Nothing runs on devices: times are those of the blocks. Every row is written as soon as it is known.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.results.store.environment import describe_environment
from autotune.schedule.search import Answer, search
from autotune.workloads.blocks import BlockGraph, split_backward
from tests.autotune.schedule.instances import least_makespan, random_chain, random_dag
from tests.autotune.schedule.shapes import SHAPES, forward_only
from tests.benchmarks import schedule_tables as tables
from tests.benchmarks.published_table import put_between
from tests.benchmarks.schedule_instances import cut_model

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "results" / "published" / "schedules"
PAGE = ROOT / "docs" / "schedules.md"
TESSEL = {("V", 32): 149, ("X", 32): 270, ("K", 32): 200, ("M", 128): 780}
"""Makespans of its public code, as read there or measured: NN was not solved."""
REALISTIC_S, MAKESPAN_S, RANDOM_S, LARGE_S = 20.0, 8.0, 1.0, 40.0
"""Of one search; the last for shapes on 16 devices and more."""
Row = dict[str, Any]


def periods() -> Iterator[Row]:
    """The five shapes on more and more devices."""
    for devices in (4, 8, 16, 32):
        for name, make in SHAPES.items():
            time_s = LARGE_S if devices >= 16 else None
            yield {"shape": name, "devices": devices} | _figures(search(make(devices), 2 * devices, time_s=time_s))


def makespans() -> Iterator[Row]:
    """The five shapes on four devices, for few and many micro-batches."""
    for name, make in SHAPES.items():
        for num in (8, 32, 128):
            answer = search(make(4), num, time_s=MAKESPAN_S)
            yield {"shape": name, "tessel": TESSEL.get((name, num))} | _figures(answer)


def inference() -> Iterator[Row]:
    """Forward alone: latency of few micro-batches."""
    for name in ("K", "NN"):
        for devices in (4, 8):
            for num in (1, 4, 16):
                answer = search(forward_only(SHAPES[name](devices)), num, time_s=MAKESPAN_S)
                yield {"shape": name, "devices": devices} | _figures(answer)


def realistic() -> Iterator[Row]:
    """Models cut into stages on mixed devices, with links, split backward and memory that binds."""
    for stages in (8, 16, 32):
        for workload in ("gpt", "resnet"):
            graph = cut_model(workload, stages, 2 * stages)
            answer = search(graph, 2 * stages, time_s=REALISTIC_S)
            yield {"workload": workload, "devices": stages, "stages": len(graph.blocks) // 2} | _figures(answer)


def drawn() -> Iterator[Row]:
    """Two hundred problems with unequal devices, links, limits; chains, split or not, and any graphs."""
    for seed in range(200):
        kind = "graph" if seed % 4 == 0 else "chain"
        graph = (
            random_chain(seed, split=seed % 2 == 1) if seed % 4 else random_dag(seed, devices=(4, 8), blocks=(6, 14))
        )
        yield {"seed": seed, "kind": kind} | _brief(search(graph, 4 + seed % 9, time_s=RANDOM_S))


def small() -> Iterator[Row]:
    """A hundred problems that are small enough to try everything."""
    for place, (graph, num) in enumerate(small_problems(100)):
        least = min(least_makespan(graph, num), least_makespan(split_backward(graph), num))
        yield {"case": place, "optimum": least} | _brief(search(graph, num))


def small_problems(count: int) -> list[tuple[BlockGraph, int]]:
    chains = [(random_chain(seed, devices=(2, 2), whole=True), 3) for seed in range(count // 4)]
    split = [(random_chain(seed, devices=(2, 2), whole=True, split=True), 2) for seed in range(count // 4)]
    return chains + split + [(random_dag(seed), 2) for seed in range(count - 2 * (count // 4))]


def _brief(answer: Answer) -> Row:
    return {
        "micro_batches": answer.table.num_microbatches,
        "makespan": answer.replay.makespan_s,
        "makespan_lower_bound": answer.makespan_bound_s,
        "portfolio": min(answer.portfolio_s.values()),
        "seconds": answer.seconds,
    }


def _figures(answer: Answer) -> Row:
    busy = [busy for busy in answer.replay.busy_s if busy > 0]
    return {
        "period": answer.period_s,
        "period_lower_bound": answer.period_bound_s,
        "proven": answer.proven,
        "period_seconds": answer.period_seconds,
        "winner": answer.winner,
        "busy": sum(busy) / len(busy),
        **_brief(answer),
        "portfolio": answer.portfolio_s,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A question, how its answer is shown, and what it must be."""

    rows: Callable[[], Iterator[Row]]
    table: Callable[[tables.Rows], str]
    bars: Callable[[tables.Rows], tables.Verdicts]


PARTS = {
    "periods": Part(rows=periods, table=tables.periods_table, bars=tables.periods_bars),
    "makespans": Part(rows=makespans, table=tables.makespans_table, bars=tables.makespans_bars),
    "inference": Part(rows=inference, table=tables.inference_table, bars=tables.inference_bars),
    "realistic": Part(rows=realistic, table=tables.realistic_table, bars=tables.realistic_bars),
    "small": Part(rows=small, table=tables.small_table, bars=tables.small_bars),
    "random": Part(rows=drawn, table=tables.random_table, bars=tables.random_bars),
}


def make(name: str) -> None:
    """All rows of a part, on disk one by one."""
    kept: dict[str, Any] = {
        "command": f"nox -s schedules -- {name}",
        "label": "computed: one thread, times of blocks as given",
        "environment": describe_environment(),
        "rows": [],
    }
    for row in PARTS[name].rows():
        kept["rows"].append(row)
        (PUBLISHED / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
        shown = {key: value for key, value in row.items() if key not in ("portfolio", "environment")}
        print(name, json.dumps(shown), flush=True)


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
        show(name)
    print(f"{sum(show(name) for name in PARTS)} bars missed")


if __name__ == "__main__":
    main(sys.argv[1:])
