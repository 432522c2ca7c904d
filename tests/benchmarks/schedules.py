"""Pipeline schedules: how fast they are found, how good they are. `nox -s schedules` writes results/published/schedules and the
tables of docs/schedules.md; `-- again` makes the tables of what is kept. Nothing runs on devices: times are those of the blocks.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.bench import capture_workload, with_dataflow
from autotune.schedule.cut import best_cut
from autotune.schedule.search import Answer, search
from autotune.schedule.shapes import SHAPES, forward_only
from autotune.schedule.stage_costs import StageCosts, stage_costs
from autotune.simulate.cost_model import cost_model
from results.environment import describe_environment
from results.published_table import put_between
from workloads.blocks import BlockGraph
from workloads.cluster import Cluster, Device, Host, Link
from workloads.registry import load_workload

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "results" / "published" / "schedules"
PAGE = ROOT / "docs" / "schedules.md"
TESSEL = {("V", 32): 149, ("X", 32): 270, ("K", 32): 200, ("M", 128): 780}
"""Makespans of its public code, as read there or measured: NN was not solved."""
KINDS = ((4.0, 16e9), (2.0, 12e9), (1.0, 8e9), (0.5, 6e9))
"""Devices of a mix: 10^12 operations a second, bytes of memory before it is made to bind."""
ROOM = 0.75
"""Of the micro-batches that 1F1B would hold on a device, rounded up: memory that binds."""


def periods() -> list[dict[str, Any]]:
    """The five shapes on more and more devices."""
    return [
        {"shape": name, "devices": devices} | _figures(search(make(devices), 2 * devices))
        for devices in (4, 8, 16, 32)
        for name, make in SHAPES.items()
    ]


def makespans() -> list[dict[str, Any]]:
    """The five shapes on four devices, for few and many micro-batches, with ten seconds each."""
    rows = []
    for name, make in SHAPES.items():
        for num in (8, 32, 128):
            answer = search(make(4), num, time_s=10.0)
            rows.append({"shape": name, "tessel": TESSEL.get((name, num))} | _figures(answer))
    return rows


def inference() -> list[dict[str, Any]]:
    """Forward alone: latency of few micro-batches."""
    rows = []
    for name in ("K", "NN"):
        for devices in (4, 8):
            for num in (1, 4, 16):
                answer = search(forward_only(SHAPES[name](devices)), num, time_s=10.0)
                rows.append({"shape": name, "devices": devices} | _figures(answer))
    return rows


def realistic() -> list[dict[str, Any]]:
    """Models cut into stages on mixed devices, with links, split backward and memory that binds."""
    rows = []
    for workload, stages in (("gpt", 8), ("gpt", 16), ("resnet", 8), ("resnet", 16), ("resnet", 32)):
        for num in (2 * stages,):
            graph = _cut_model(workload, stages, num)
            answer = search(graph, num, time_s=60.0)
            rows.append({"workload": workload, "devices": stages, "stages": len(graph.blocks) // 2} | _figures(answer))
    return rows


def _cut_model(name: str, num_devices: int, num: int) -> BlockGraph:
    """The best cut, on memory of which 1F1B would need more."""
    workload = load_workload(name, {"size": "large"})
    graph = with_dataflow(capture_workload(workload, 0), workload, 0)
    graph = replace(graph, held_bytes=4 * graph.param_bytes)  # with gradients and Adam's two moments
    costs = cost_model(graph, _mix(num_devices))

    def of(count: int) -> StageCosts:
        return stage_costs(graph, costs, max(workload.global_batch / count, 1.0))

    cut = best_cut(of, (num,), max_moves=2 * num_devices).graph
    stages = len(cut.blocks) // 2
    memory = list(cut.memory)
    for stage, block in enumerate(cut.blocks[:stages]):
        memory[block.devices[0]] = math.ceil(ROOM * (stages - stage)) * block.memory
    return BlockGraph(num_devices=cut.num_devices, memory=tuple(memory), blocks=cut.blocks, link_s=cut.link_s)


def _mix(num_devices: int) -> Cluster:
    """Hosts of up to four devices of one kind, on 1 to 10 Gbit/s."""
    hosts = []
    for index in range(0, num_devices, 4):
        speed, memory = KINDS[index // 4 % len(KINDS)]
        device = Device(
            name=f"kind{index // 4 % len(KINDS)}",
            flops_per_s=speed * 1e12,
            memory_bytes_per_s=speed * 1e11,
            launch_s=5e-6,
            memory_bytes=memory,
        )
        rate = (10e9, 5e9, 2.5e9, 1e9)[index // 4 % 4] / 8
        link = Link(up_bytes_per_s=rate, down_bytes_per_s=rate, latency_s=5e-5)
        hosts.append(Host(name=f"host{index // 4}", devices=(device,) * min(4, num_devices - index), link=link))
    return Cluster(name=f"mixed{num_devices}", hosts=tuple(hosts))


def _figures(answer: Answer) -> dict[str, Any]:
    busy = [busy for busy in answer.replay.busy_s if busy > 0]
    return {
        "micro_batches": answer.table.num_microbatches,
        "period": answer.period_s,
        "period_lower_bound": answer.period_bound_s,
        "proven": answer.proven,
        "period_seconds": answer.period_seconds,
        "makespan": answer.replay.makespan_s,
        "makespan_lower_bound": answer.makespan_bound_s,
        "winner": answer.winner,
        "portfolio": answer.portfolio_s,
        "seconds": answer.seconds,
        "busy": sum(busy) / len(busy),
    }


def periods_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"| {row['shape']} | {row['devices']} | {row['period']:.4g} | {row['period_lower_bound']:.4g} "
        f"| {'yes' if row['proven'] else f'''no, gap {row['period'] / row['period_lower_bound'] - 1:.1%}'''} | {row['period_seconds']:.2f} s |"
        for row in rows
    ]
    return "\n".join(
        ["| shape | devices | period | lower bound | proven | found in |", "|---|---|---|---|---|---|", *lines]
    )


def makespans_table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        name, least = min(row["portfolio"].items(), key=lambda item: item[1])
        lines.append(
            f"| {row['shape']} | {row['micro_batches']} | {row['makespan']:.6g} | {row['makespan_lower_bound']:.6g} "
            f"| {least:.6g} ({name}) | {row['tessel'] or ''} |"
        )
    head = "| shape | micro-batches | makespan | lower bound | best without search | Tessel (external) |"
    return "\n".join([head, "|---|---|---|---|---|---|", *lines])


def realistic_table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        split = {name: s for name, s in row["portfolio"].items() if name.startswith("zero-bubble")}
        cells = [row["makespan"], min(split.values(), default=None), row["portfolio"].get("1f1b")]
        bubbles = " | ".join("" if taken is None else f"{1 - row['busy'] / taken:.1%}" for taken in cells)
        gap = row["makespan"] / row["makespan_lower_bound"] - 1
        lines.append(
            f"| {row['workload']} | {row['devices']} | {row['stages']} | {row['micro_batches']} | {bubbles} "
            f"| {gap:.1%} | {row['winner']} | {row['seconds']:.0f} s |"
        )
    head = "| model | devices | stages | micro-batches | bubble: ours | zero-bubble | 1F1B | above the bound at most | by | searched |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|---|---|", *lines])


def inference_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"| {row['shape']} | {row['devices']} | {row['micro_batches']} | {row['makespan']:.6g} | {row['makespan_lower_bound']:.6g} "
        f"| {row['portfolio']['oldest first']:.6g} | {row['portfolio']['one by one']:.6g} |"
        for row in rows
    ]
    head = "| shape | devices | micro-batches | latency | lower bound | oldest first, as 1F1B | one by one |"
    return "\n".join([head, "|---|---|---|---|---|---|---|", *lines])


PARTS = {
    "periods": (periods, periods_table),
    "makespans": (makespans, makespans_table),
    "realistic": (realistic, realistic_table),
    "inference": (inference, inference_table),
}


def main(arguments: list[str]) -> None:
    """All parts, or those named; `again`: only the tables."""
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    chosen = [part for part in arguments if part in PARTS] or ([] if arguments == ["again"] else list(PARTS))
    for name in chosen:
        found = {
            "command": f"nox -s schedules -- {name}",
            "label": "computed: one thread, times of blocks as given",
            "environment": describe_environment(),
            "rows": PARTS[name][0](),
        }
        (PUBLISHED / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, (_, table) in PARTS.items():
        if (PUBLISHED / f"{name}.json").exists():
            rows = json.loads((PUBLISHED / f"{name}.json").read_text())["rows"]
            put_between(PAGE, f"<!-- {name} -->", f"<!-- /{name} -->", table(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
