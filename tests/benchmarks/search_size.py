"""How long a search takes on large clusters: `python -m tests.benchmarks.search_size`, or with numbers of hosts of 8 devices.

Clusters of unlike hosts of 8 devices, once of three kinds of devices and once with a profile of its own for each device, where no
two ranks are alike. Per cluster: one plan, costs and topology included; the sets of ranks worth a trial; one proposal of a
sweep after some trials; all of `autotune plan`.
"""

from __future__ import annotations

import json
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.results.store.environment import describe_environment
from autotune.search.local_search import descend
from autotune.search.predicted_costs import rank_costs
from autotune.search.problem import Problem
from autotune.search.rank_sets import as_choices, worthwhile_sets
from autotune.search.ranking import Ranking
from autotune.simulate.simulator import Simulator
from autotune.workloads.cluster import Cluster, parse_cluster
from autotune.workloads.split import balanced, bounds
from autotune.workloads.topology import make_topology
from tests.autotune.simulate.test_closed_forms import make_graph, make_simulator
from tests.benchmarks.published_table import put_between

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "results" / "published" / "benchmarks" / "search-size.json"
PAGE = ROOT / "docs" / "simulator.md"
HOSTS = (8, 128)
PER_DEVICE = 8
BARS_S = {8: {"plan": 2.0, "proposal": 1.0}, 128: {"plan": 2.0, "proposal": 30.0, "all": 600.0}}
CLUSTER = """
emulation = "paced"
[device.a]
flops = "4 TFLOP/s"
[device.b]
flops = "2 TFLOP/s"
[device.c]
flops = "1 TFLOP/s"
[fabric.board]
bandwidth = "20 GB/s"
latency = "2 us"
"""
HOST = """
[[host]]
name = "{kind}"
count = {count}
devices = ["8 x {kind}"]
fabric = "board"
uplink = "1 GB/s"
downlink = "1 GB/s"
latency = "10 us"
"""


def make_cluster(num_hosts: int) -> Cluster:
    counts = {"a": num_hosts // 4, "b": num_hosts // 2, "c": num_hosts // 4}
    text = CLUSTER + "".join(HOST.format(kind=kind, count=count) for kind, count in counts.items())
    return parse_cluster(tomllib.loads(text), where="benchmark", default_name=f"{num_hosts} hosts")


def make(num_hosts: int, *, unlike: bool) -> Simulator:
    """A model of 50 ops. `unlike`: each device is a little faster or slower than others of its kind."""
    make_topology.cache_clear()
    cluster = make_cluster(num_hosts)
    simulator = make_simulator(make_graph(50, param_bytes=1_000_000), cluster, PER_DEVICE * len(cluster.devices))
    if not unlike:
        return simulator
    factors = np.random.default_rng(0).uniform(0.95, 1.05, (len(cluster.devices), 1))
    costs = simulator.costs
    forward, backward = (
        replace(times, arithmetic_s=times.arithmetic_s * factors) for times in (costs.forward, costs.backward)
    )
    return Simulator(simulator.info, simulator.graph, replace(costs, forward=forward, backward=backward))


def measured(num_hosts: int, *, unlike: bool) -> dict[str, Any]:
    simulator, cluster = make(num_hosts, unlike=unlike), make_cluster(num_hosts)
    size, total = len(cluster.devices), simulator.info.global_batch
    problem = Problem(
        global_batch=total,
        param_bytes=simulator.graph.param_bytes,
        graph=simulator.graph,
        cluster=cluster,
        limits=bounds(size, total),
        transports=("gloo",),
    )
    space = problem.space(allow_lossy=False)
    start = balanced(rank_costs(simulator), total, space.limits)
    plan = space.with_knobs(start, {})
    simulator.step_s(plan)  # compiles
    found: dict[str, Any] = {"ranks": size, "unlike": unlike}
    found["plan"] = seconds(lambda: make(num_hosts, unlike=unlike).step_s(plan))
    sets = worthwhile_sets(simulator, space, simulator.fitting_step_s)
    space = replace(space, rank_sets=as_choices(sets))
    others = [one.plan.batch.samples for one in sets]
    found["proposal"] = seconds(
        lambda: Ranking(make(num_hosts, unlike=unlike), space).choose(
            [], start, plan, [space.point(plan)], explore=False, others=others
        )
    )

    def everything() -> None:
        anew = make(num_hosts, unlike=unlike)
        kept = worthwhile_sets(anew, space, anew.fitting_step_s)
        judged = descend(space, start, anew.fitting_step_s, most=5_000, others=[one.plan.batch.samples for one in kept])
        found["num_predicted"], found["step_s"] = len(judged), judged[0][0]

    found["all"] = seconds(everything)
    return found


def seconds(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| devices | one plan | one proposal | `plan` | bars |", "|---|---|---|---|---|"]
    for row in rows:
        bars = BARS_S.get(row["ranks"] // 8, {})
        kind = "no two alike" if row["unlike"] else "three kinds"
        lines.append(
            f"| {row['ranks']:,}, {kind} | {row['plan']:.2g} s | {row['proposal']:.2g} s | {row['all']:.3g} s | "
            f"{', '.join(f'{bar:g} s' for bar in bars.values())} |"
        )
    return "\n".join(lines)


def main(hosts: tuple[int, ...]) -> None:
    rows = []
    for num_hosts in hosts:
        for unlike in (False, True):
            rows.append(measured(num_hosts, unlike=unlike))
            sys.stdout.write(json.dumps(rows[-1]) + "\n")
            sys.stdout.flush()
    if hosts != HOSTS:
        return
    document = {
        "command": "nox -s search_size",
        "label": "measured on this machine",
        "environment": describe_environment(),
        "rows": rows,
    }
    KEPT.write_text(json.dumps(document, indent=1) + "\n")
    put_between(PAGE, "<!-- size -->", "<!-- /size -->", table(rows))


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or HOSTS)
