"""Leaving devices out, against brute force: every set of ranks, and the best plan of each in the same space."""

from __future__ import annotations

import math
import random
import tomllib
from dataclasses import replace
from itertools import combinations

import pytest

from autotune.search import rank_sets
from autotune.search.local_search import descend, knob_plans
from autotune.search.predicted_costs import rank_costs
from autotune.search.problem import Problem
from autotune.search.rank_sets import SetProblem, as_choices, best_sets, worthwhile_sets
from autotune.space.space import max_bucket_log2
from autotune.workloads.cluster import Cluster, Device, Host, parse_cluster
from autotune.workloads.errors import AutotuneError
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from autotune.workloads.split import balanced, bounds
from autotune.workloads.topology import Link
from tests.autotune.simulate.test_closed_forms import make_graph, make_simulator

BOX = """
emulation = "paced"
[device.a100]
flops = "120 TFLOP/s"
price_per_hour = 3.0
[device.v100]
flops = "60 TFLOP/s"
price_per_hour = 1.5
[device.cpu]
flops = "1 TFLOP/s"
price_per_hour = 0.5
[fabric.nvlink]
bandwidth = "300 GB/s"
latency = "2 us"
[[host]]
name = "a"
devices = ["4 x a100"]
fabric = "nvlink"
uplink = "10 Gbit/s"
downlink = "10 Gbit/s"
latency = "50 us"
[[host]]
name = "v"
devices = ["4 x v100"]
fabric = "nvlink"
uplink = "10 Gbit/s"
downlink = "10 Gbit/s"
latency = "50 us"
[[host]]
name = "box"
devices = ["cpu"]
uplink = "1 Gbit/s"
downlink = "1 Gbit/s"
latency = "200 us"
"""


def random_cluster(draw: random.Random) -> Cluster:
    """Up to six devices in hosts of one or two, speeds over three decades, some links a hundred times slower."""
    num_devices, hosts, number = draw.randint(2, 6), [], 0
    kinds = [Device(name=f"kind{kind}", flops_per_s=10 ** draw.uniform(9, 12)) for kind in range(draw.randint(1, 6))]
    while number < num_devices:
        count = min(draw.choice((1, 1, 2)), num_devices - number)
        speed = 10 ** draw.uniform(7, 10)
        link = Link(up_bytes_per_s=speed, down_bytes_per_s=speed, latency_s=draw.choice((0.0, 1e-5, 1e-3)))
        devices = tuple(draw.choice(kinds) for _ in range(count))
        hosts.append(Host(name=f"host{len(hosts)}", devices=devices, link=link))
        number += count
    return Cluster(name="drawn", hosts=tuple(hosts), emulation="paced")


def random_problem(draw: random.Random, cluster: Cluster):
    graph = make_graph(
        draw.randint(1, 6), param_bytes=int(10 ** draw.uniform(4, 7)), flops=10 ** draw.uniform(5, 9), output=100.0
    )
    return make_simulator(graph, cluster, draw.randint(len(cluster.devices), 64))


def space_of(simulator):
    cluster, total = simulator.costs.cluster, simulator.info.global_batch
    problem = Problem(
        global_batch=total,
        param_bytes=simulator.graph.param_bytes,
        graph=simulator.graph,
        cluster=cluster,
        limits=bounds(len(cluster.devices), total),
        transports=("gloo",),
    )
    return replace(problem.space(allow_lossy=False), max_bucket_log2=min(max_bucket_log2(problem.param_bytes), 22))


def planned_s(simulator) -> float:
    """As `autotune plan` searches."""
    space = space_of(simulator)
    sets = worthwhile_sets(simulator, space, simulator.step_s)
    chosen = replace(space, rank_sets=as_choices(sets))
    start = balanced(rank_costs(simulator), space.global_batch, space.limits)
    judged = descend(chosen, start, simulator.step_s, most=5_000, others=[one.plan.batch.samples for one in sets])
    return judged[0][0]


def brute_force_s(simulator) -> float:
    """Each set as a cluster of its own, searched by itself."""
    found, size = math.inf, len(simulator.costs.cluster.devices)
    for count in range(1, size + 1):
        for ranks in combinations(range(size), count):
            part = make_simulator(simulator.graph, simulator.costs.cluster.part(ranks), simulator.info.global_batch)
            space = space_of(part)
            try:
                start = balanced(rank_costs(part), space.global_batch, space.limits)
            except AutotuneError:
                continue
            found = min(found, descend(space, start, part.step_s)[0][0])
    return found


def check(seed: int) -> None:
    draw = random.Random(seed)
    simulator = random_problem(draw, random_cluster(draw))
    best = brute_force_s(simulator)
    assert planned_s(simulator) <= best * 1.01
    assert simulator.limit().step_s <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", [1, 3])
def test_the_best_set_is_found_and_the_limit_is_below_it(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_on_a_hundred_random_clusters(seed):
    check(seed)


def box(total: int = 64):
    cluster = parse_cluster(tomllib.loads(BOX), where="box", default_name="box")
    return make_simulator(make_graph(4, param_bytes=3_000_000, flops=1e10, saved=1e6), cluster, total)


def test_a_cpu_box_behind_an_office_link_is_left_out():
    """12 MB of gradients take 98 ms at least over the box's 1 Gbit/s; four A100 alone take 16 samples of 1 ms."""
    simulator = box()
    assert simulator.step_s(Plan(batch=BatchPlan(samples=(8, *[7] * 8)))) > 0.17
    assert planned_s(simulator) < 0.0161
    best = worthwhile_sets(simulator, space_of(simulator), simulator.step_s)[0]
    assert 8 not in best.ranks
    assert simulator.limit().step_s <= best.value


def test_v100s_behind_an_office_link_are_left_out_too():
    text = BOX.replace("10 Gbit/s", "1 Gbit/s")
    cluster = parse_cluster(tomllib.loads(text), where="box", default_name="box")
    simulator = make_simulator(box().graph, cluster, 64)
    assert worthwhile_sets(simulator, space_of(simulator), simulator.step_s)[0].ranks == (0, 1, 2, 3)
    assert planned_s(simulator) == pytest.approx(0.016, rel=0.01)


def test_only_used_devices_are_paid_for():
    simulator = box()
    plan = Plan(batch=BatchPlan(samples=(16, 16, 16, 16, 0, 0, 0, 0, 0)))
    forecast = simulator.forecast(plan)
    assert forecast.price_per_hour == 12.0
    assert [rank.peak_memory_bytes > 0 for rank in forecast.ranks] == [True] * 4 + [False] * 5
    assert {span.rank for span in simulator.timeline(plan).spans} == {0, 1, 2, 3}


@pytest.mark.parametrize("collective", ["ring", "shards", "hierarchical"])
def test_a_plan_that_leaves_ranks_out_is_that_of_the_smaller_cluster(collective):
    simulator = box()
    plan = Plan(batch=BatchPlan(samples=(16, 0, 16, 0, 8, 0, 24, 0, 0)), comm=CommPlan(collective=collective))
    part = make_simulator(simulator.graph, simulator.costs.cluster.part(plan.used_ranks), 64)
    alone = Plan(batch=BatchPlan(samples=(16, 16, 8, 24)), comm=CommPlan(collective=collective))
    assert simulator.step_s(plan) == part.step_s(alone)
    assert simulator.simulate(plan).step_s == part.step_s(alone)
    assert simulator.outcome(plan).peak_memory_bytes[[0, 2, 4, 6]].tolist() == (
        part.outcome(alone).peak_memory_bytes.tolist()
    )
    assert simulator.outcome(plan).busy_s[[1, 3, 5, 7, 8]].tolist() == [0.0] * 5


@pytest.mark.parametrize("seed", [1, 3])
def test_a_search_among_many_sets_finds_the_best_of_few(seed, monkeypatch):
    """The same clusters, once with every set predicted and once by moves between sets."""
    draw = random.Random(seed)
    simulator = random_problem(draw, random_cluster(draw))
    space = space_of(simulator)
    problem = SetProblem(
        simulator=simulator,
        limits=space.limits,
        plans=lambda samples: knob_plans(space, samples),
        judge=simulator.step_s,
    )
    every = best_sets(problem)[0].value
    monkeypatch.setattr(rank_sets, "_FEW_SETS", 0)
    assert best_sets(problem)[0].value == pytest.approx(every, rel=1e-9)


def test_cost_prefers_fewer_devices_than_time():
    simulator = box()
    devices = simulator.costs.cluster.devices

    def price(ranks, seconds):
        return seconds * sum(devices[rank].price_per_hour or 0.0 for rank in ranks)

    def judge(plan):
        return price(plan.used_ranks, simulator.step_s(plan))

    cheapest = worthwhile_sets(simulator, space_of(simulator), judge, price)[0]
    assert len(cheapest.ranks) == 1
