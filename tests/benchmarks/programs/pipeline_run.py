"""Run by mpirun on paced ranks: schedules of a GPT whose vocabulary is on all devices, searched, 1F1B and GPipe; --json FILE.

All are interleaved in one job, in a random order per round. Each measured step is compared with the makespan, and each
rank's measured memory with the bytes, that the same costs predict. The results are written after every round.
"""

from __future__ import annotations

import argparse
import json
import random
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from pipeline_model import Setting, assemble, costs_of, tables_of, workload_of

from autotune.results.judge.stats import speedup
from autotune.results.store.environment import describe_environment
from autotune.runtime.control.mpi import Control
from autotune.runtime.control.start import start_control
from autotune.runtime.placed.trainer import PipelineJob, PipelineTrainer
from autotune.runtime.train.trainer import RankContext
from autotune.runtime.transport.groups import Groups
from autotune.schedule.check import replay
from autotune.schedule.timing import timetable
from autotune.workloads.blocks import Timetable
from autotune.workloads.cluster import Cluster, Device, load_cluster

STATE_COPIES = 4
"""Parameters, gradients and AdamW's two moments."""
BARS = {"off": 0.10, "memory": 0.10, "faster": 1.3}


@dataclass(kw_only=True)
class Run:
    """One schedule on this rank, and what all ranks measured of it."""

    name: str
    table: Timetable
    trainer: PipelineTrainer
    rounds_s: list[float] = field(default_factory=list)
    late_s: float = 0.0
    metered_bytes: list[int] = field(default_factory=list)
    predicted_bytes: list[float] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        measured_s = median(self.rounds_s)
        return {
            "schedule": self.name,
            "predicted_s": self.table.makespan_s,
            "measured_s": measured_s,
            "off": measured_s / self.table.makespan_s - 1,
            "rounds_s": self.rounds_s,
            "late_s": self.late_s,
            "predicted_bytes": self.predicted_bytes,
            "metered_bytes": self.metered_bytes,
        }


def slowed(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with slower devices: four ranks on two cores need more than a quarter of the time that the fast ones state."""

    def slow(device: Device) -> Device:
        assert device.flops_per_s is not None
        assert device.memory_bytes_per_s is not None
        flops, memory = device.flops_per_s / factor, device.memory_bytes_per_s / factor
        return replace(device, flops_per_s=flops, memory_bytes_per_s=memory)

    hosts = tuple(replace(host, devices=tuple(map(slow, host.devices))) for host in cluster.hosts)
    return replace(cluster, name=f"{cluster.name}, {factor:g} times slower", hosts=hosts)


def agreed_tables(control: Control, setting: Setting, time_s: float) -> dict[str, Timetable]:
    """Rank 0's searched order on all ranks: two searches under a time limit may find two."""
    found = tables_of(setting, time_s if control.is_leader else 0.01)
    mine = found["searched"]
    graph = mine.graph
    order = control.broadcast([[(s.block, s.microbatch) for s in one] for one in mine.order])
    steps = [[(graph.index[block], microbatch) for block, microbatch in one] for one in order]
    searched = timetable(graph, setting.num_microbatches, steps)
    assert searched is not None
    return found | {"searched": searched}


def held_bytes(trainer: PipelineTrainer, setting: Setting, rank: int) -> float:
    """What a rank holds between steps by the costs alone: its parts' parameters (a table that two parts share once), four times."""
    program = trainer.executor.program
    torch.manual_seed(0)
    ops = assemble(setting, setting.workload.model()).ops
    own = [part for part in program.parts if rank in program.devices[part.name]]
    return STATE_COPIES * sum(
        sum(op.param_bytes for op in ops[part.name]) / len(program.devices[part.name]) for part in own
    )


def start(
    control: Control, groups: Groups, setting: Setting, tables: dict[str, Timetable], stack: ExitStack
) -> list[Run]:
    """A trainer for each schedule; the first step tells shapes, the second meters memory."""
    runs = []
    for name, table in tables.items():
        group = stack.enter_context(groups.open("gloo", timeout_s=60))
        job = PipelineJob(workload=setting.workload, assemble=partial(assemble, setting), table=table)
        device = setting.cluster.devices[control.rank]
        rank_context = RankContext(rank=control.rank, device=device, torch_device=torch.device("cpu"), timeout_s=60)
        run = Run(name=name, table=table, trainer=PipelineTrainer(job, group, rank_context, seed=0))
        del group
        run.trainer.step()
        run.trainer.metered_step()
        activations = replay(table).peak_memory[control.rank]
        predicted = held_bytes(run.trainer, setting, control.rank) + activations
        run.predicted_bytes = control.share(predicted)
        run.metered_bytes = control.share(run.trainer.peak_memory_bytes)
        runs.append(run)
    return runs


def measure(control: Control, runs: list[Run], number: int, steps: int) -> None:
    """One round: every schedule once, with one step that is not counted, then the counted ones."""
    for run in random.Random(number).sample(runs, len(runs)):
        taken = []
        for step in range(steps + 1):
            control.share(None)
            done = run.trainer.step()
            # Up to the last gradient: the optimizer is no part of a schedule.
            seconds, late_s = done.reduced_s - done.data_s, done.late_s
            if step:
                taken.append(max(control.share(seconds)))
                run.late_s = max(run.late_s, *control.share(late_s))
            else:
                control.share(seconds)
        run.rounds_s.append(fmean(taken))


def verdicts(rows: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    """What must be shown, and whether it was."""
    found = []
    for row in rows:
        off, name = row["off"], row["schedule"]
        said = f"{name}: measured {1e3 * row['measured_s']:.1f} ms, simulated {1e3 * row['predicted_s']:.1f} ms ({off:+.1%})"
        found.append((said, abs(off) <= BARS["off"]))
        worst = max(
            abs(metered / predicted - 1)
            for metered, predicted in zip(row["metered_bytes"], row["predicted_bytes"], strict=True)
        )
        found.append((f"{name}: metered memory off by {worst:.1%} at most", worst <= BARS["memory"]))
    by_name = {row["schedule"]: row for row in rows}
    ratio = speedup(by_name["1f1b"]["rounds_s"], by_name["searched"]["rounds_s"])
    predicted = by_name["1f1b"]["predicted_s"] / by_name["searched"]["predicted_s"]
    said = f"searched is {ratio.value:.3f}x 1F1B ({ratio.low:.3f}-{ratio.high:.3f}), predicted {predicted:.3f}x"
    return [*found, (said, ratio.low >= BARS["faster"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", default="uniform4")
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--micro-batches", type=int, default=24)
    parser.add_argument(
        "--slower", type=float, default=3.0, help="devices slower by this factor: real work is to hide in them"
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--search-s", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    control = start_control()
    cluster = slowed(load_cluster(given.cluster).for_ranks(control.size), given.slower)
    workload = workload_of(given.batch)
    setting = Setting(
        workload=workload, costs=costs_of(workload), cluster=cluster, num_microbatches=given.micro_batches
    )
    tables = agreed_tables(control, setting, given.search_s)
    said = {"cluster": cluster.name, "label": cluster.label, "environment": describe_environment()}
    with ExitStack() as stack:
        runs = start(control, Groups(control, cluster), setting, tables, stack)
        for number in range(given.rounds):
            measure(control, runs, number, given.steps)
            if control.is_leader and given.json is not None:
                kept = said | {"micro_batches": given.micro_batches, "rows": [run.row() for run in runs]}
                given.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        for run in runs:
            run.trainer.close()
    if control.is_leader:
        for text, met in verdicts([run.row() for run in runs]):
            print(f"{'met   ' if met else 'MISSED'} {text}", flush=True)
    control.share(None)


if __name__ == "__main__":
    main()
