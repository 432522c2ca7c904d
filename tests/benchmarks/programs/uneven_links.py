"""Run by mpirun in a lab of uneven links: an all-reduce by gloo's ring and by owner shards, interleaved, on the same connections.

    autotune lab up --name uneven --cluster slow-link4
    autotune lab run --name uneven -- PYTHON tests/benchmarks/programs/uneven_links.py [--json FILE]
    autotune lab down --name uneven

With several `--chunk-kib` every size takes its turn in each round. Rank 0 prints the times, the ratios with their
intervals, and the bound: the time in which the slowest link carries the tensor once.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from autotune.results.judge.stats import speedup
from autotune.results.store.environment import LAB_VARIABLE, describe_environment
from autotune.runtime.control.mpi import Control
from autotune.runtime.control.start import start_control
from autotune.runtime.transport.groups import Groups
from autotune.runtime.transport.shard_group import CHUNK_BYTES, ShardGroup
from autotune.simulate.collectives import all_reduce_loads, owned_shares
from autotune.workloads.cluster import Cluster, load_cluster

RING = "ring"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster", default="slow-link4")
    parser.add_argument("--megabytes", type=float, default=50.0)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--chunk-kib", type=int, nargs="+", default=[CHUNK_BYTES >> 10])
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def check(group: dist.ProcessGroup) -> None:
    """Small whole numbers, whose sums are exact whatever their order."""
    numbers = torch.arange(100_003) % 7 + 1.0
    summed = numbers * (group.rank() + 1)
    group.allreduce([summed], dist.AllreduceOptions()).wait()
    if not torch.equal(summed, numbers * (group.size() * (group.size() + 1) // 2)):
        raise ValueError("the sum is wrong")


def measure(control: Control, group: dist.ProcessGroup, zeros: torch.Tensor) -> float:
    """Seconds until the last rank has the sum."""
    control.share(None)
    begun = time.monotonic()
    group.allreduce([zeros], dist.AllreduceOptions()).wait()
    return float(max(control.share(time.monotonic() - begun)))


def wire_s(cluster: Cluster, collective: str, num_bytes: float) -> float:
    """What the busiest link needs for its bytes."""
    links = [host.link for host in cluster.hosts]
    return max(
        max(load.up_bytes / link.up_bytes_per_s, load.down_bytes / link.down_bytes_per_s)
        for load in all_reduce_loads(collective, cluster, num_bytes)
        if (link := links[load.host]) is not None
    )


def bound_s(cluster: Cluster, num_bytes: float) -> float:
    """Every host has to send its bytes once and to receive the sum once."""
    links = [host.link for host in cluster.hosts if host.link is not None]
    return max(num_bytes / min(link.up_bytes_per_s, link.down_bytes_per_s) for link in links)


def compared(name: str, times: dict[str, list[float]], bound: float) -> dict[str, Any]:
    """A collective against the ring, round by round, and against the bound."""
    ratio = speedup(times[RING], times[name])
    return {
        "median_s": median(times[name]),
        "over_bound": median(times[name]) / bound,
        "times_faster_than_ring": {"value": ratio.value, "low": ratio.low, "high": ratio.high},
        "verdict": ratio.verdict,
    }


def report(args: argparse.Namespace, cluster: Cluster, times: dict[str, list[float]], num_bytes: int) -> str:
    bound = bound_s(cluster, num_bytes)
    found = {
        "command": "nox -s uneven_links",
        "label": cluster.label,
        "environment": describe_environment(),
        "cluster": cluster.name,
        "num_bytes": num_bytes,
        "rounds": args.rounds,
        "shares": owned_shares(cluster),
        "bound_s": bound,
        "wire_s": {kind: wire_s(cluster, kind, num_bytes) for kind in (RING, "shards")},
        RING: {"median_s": median(times[RING]), "over_bound": median(times[RING]) / bound},
        **{name: compared(name, times, bound) for name in times if name != RING},
        "times_s": {name: [round(took_s, 4) for took_s in taken] for name, taken in times.items()},
    }
    return json.dumps(found, indent=1) + "\n"


def take_turns(
    control: Control, collectives: dict[str, dist.ProcessGroup], zeros: torch.Tensor, num_rounds: int
) -> dict[str, list[float]]:
    """Each collective once a round, in random order."""
    for group in collectives.values():  # connections, buffers and token buckets are not new after this
        check(group)
        measure(control, group, zeros)
    times: dict[str, list[float]] = {name: [] for name in collectives}
    for number in range(num_rounds):
        for name in random.Random(number).sample(list(collectives), len(collectives)):
            times[name].append(measure(control, collectives[name], zeros))
    return times


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    control = start_control()
    in_lab = bool(os.environ.get(LAB_VARIABLE))
    cluster = dataclasses.replace(load_cluster(args.cluster).for_ranks(control.size), in_lab=in_lab)
    zeros = torch.zeros(int(args.megabytes * 1e6) // 4)
    with Groups(control, cluster).open("gloo", timeout_s=120) as ring:
        shares = owned_shares(cluster)
        shards = [ShardGroup(ring, shares, chunk_bytes=kib << 10) for kib in args.chunk_kib]
        names = [f"shards of {kib} KiB" for kib in args.chunk_kib]
        times = take_turns(control, {RING: ring} | dict(zip(names, shards, strict=True)), zeros, args.rounds)
        while shards:
            shards.pop().close().join()
        del ring
    if control.is_leader:
        text = report(args, cluster, times, zeros.nbytes)
        sys.stdout.write(text)
        if args.json is not None:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(text, encoding="utf-8")
    control.share(None)


if __name__ == "__main__":
    main()
