"""Run by mpirun, paced or in a lab: all-reduces over hosts of several ranks, by each collective, interleaved.

    mpirun -n 8 PYTHON tests/benchmarks/programs/hosts_of_several.py CLUSTER.toml OUT.json
    autotune lab run --name hosts -- PYTHON tests/benchmarks/programs/hosts_of_several.py CLUSTER.toml OUT.json

A tensor is summed whole, and cut into several that are in flight together, as partitions of a plan are: then the phases of a
hierarchical sum overlap. Rank 0 writes the times, their ratios to the ring's with intervals, and the closed forms, after each
number of tensors in flight.
"""

from __future__ import annotations

import dataclasses
import os
import random
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from autotune.results.judge.stats import speedup
from autotune.results.store.environment import LAB_VARIABLE, describe_environment
from autotune.results.store.store import write_json
from autotune.runtime.control.mpi import Control
from autotune.runtime.control.start import start_control
from autotune.runtime.transport.groups import Groups
from autotune.simulate.collectives import all_reduce_latency_s, sum_phases
from autotune.workloads.cluster import Cluster, load_cluster
from autotune.workloads.plan import CommPlan

COLLECTIVES = ("ring", "shards", "hierarchical", "hierarchical-shards")
NUM_BYTES, ROUNDS = 4_000_000, 8
IN_FLIGHT = (1, 4, 8)
"""Into how many tensors the bytes are cut."""


def check(group: dist.ProcessGroup) -> None:
    """Small whole numbers, whose sums are exact whatever their order."""
    numbers = torch.arange(100_003) % 7 + 1.0
    summed = numbers * (group.rank() + 1)
    group.allreduce([summed], dist.AllreduceOptions()).wait()
    if not torch.equal(summed, numbers * (group.size() * (group.size() + 1) // 2)):
        raise ValueError("the sum is wrong")


def measure(control: Control, group: dist.ProcessGroup, tensors: list[torch.Tensor]) -> float:
    """Seconds until the last rank has all sums."""
    control.share(None)
    begun = time.monotonic()
    for work in [group.allreduce([tensor], dist.AllreduceOptions()) for tensor in tensors]:
        work.wait()
    return float(max(control.share(time.monotonic() - begun)))


def closed_form_s(cluster: Cluster, collective: str, count: int) -> float:
    """Of `count` tensors: all phases of the first, and as often as there are others the longest phase, which they wait for."""
    phases = sum_phases(CommPlan(collective=collective), cluster, NUM_BYTES / count)
    busy_s = [cluster.topology.busy_s(phase) for phase in phases]
    return sum(busy_s) + (count - 1) * max(busy_s) + all_reduce_latency_s(collective, cluster)


def compared(cluster: Cluster, count: int, times: dict[str, list[float]]) -> dict[str, Any]:
    found = {}
    for name, taken in times.items():
        ratio = speedup(times["ring"], taken)
        found[name] = {
            "median_s": median(taken),
            "closed_form_s": closed_form_s(cluster, name, count),
            "times_faster_than_ring": {"value": ratio.value, "low": ratio.low, "high": ratio.high},
            "times_s": [round(took_s, 4) for took_s in taken],
        }
    return found


def take_turns(control: Control, groups: dict[str, dist.ProcessGroup], count: int) -> dict[str, list[float]]:
    """Each collective once a round, in random order; the first round only warms up."""
    tensors = list(torch.zeros(NUM_BYTES // 4).tensor_split(count))
    times: dict[str, list[float]] = {name: [] for name in groups}
    for number in range(ROUNDS + 1):
        for name in random.Random(number).sample(list(groups), len(groups)):
            times[name].append(measure(control, groups[name], tensors))
    return {name: taken[1:] for name, taken in times.items()}


def main() -> None:
    torch.set_num_threads(1)
    control = start_control()
    in_lab = bool(os.environ.get(LAB_VARIABLE))
    cluster = dataclasses.replace(load_cluster(sys.argv[1]).for_ranks(control.size), in_lab=in_lab)
    opened, found = Groups(control, cluster), {}
    with ExitStack() as stack:
        groups = {
            name: stack.enter_context(opened.open("gloo", collective=name, timeout_s=120)) for name in COLLECTIVES
        }
        for group in groups.values():
            check(group)
        del group  # nothing may hold a group that is to be closed
        for count in IN_FLIGHT:
            found[str(count)] = compared(cluster, count, take_turns(control, groups, count))
            if control.is_leader:
                keep(cluster, found)
                show(count, found[str(count)])
        groups.clear()
    control.share(None)


def keep(cluster: Cluster, found: dict[str, Any]) -> None:
    kept = {
        "command": "nox -s hierarchical",
        "label": cluster.label,
        "environment": describe_environment(),
        "cluster": cluster.name,
        "num_bytes": NUM_BYTES,
        "rounds": ROUNDS,
        "tensors_in_flight": found,
    }
    write_json(Path(sys.argv[2]), kept)


def show(count: int, found: dict[str, Any]) -> None:
    for name, one in found.items():
        times = one["times_faster_than_ring"]
        sys.stdout.write(
            f"{count:>2} in flight  {name:20} {one['median_s']:.3f} s (closed form {one['closed_form_s']:.3f} s)  "
            f"{times['value']:.2f}x ({times['low']:.2f}-{times['high']:.2f})\n"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
