"""What placement searches choose from: groups of ops, sets of devices, estimates."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from autotune.placement.groups.device_sets import device_sets, islands
from autotune.placement.groups.local import random_assignments
from autotune.placement.groups.op_groups import group_ops
from autotune.placement.groups.shares import better_shares
from autotune.placement.groups.tree_search import reward_of, tree
from autotune.workloads.graph import Edge
from autotune.workloads.tensor_graph.operations import operations_of
from tests.autotune.placement.groups.cases import BATCH, random_cluster, random_graph, random_problem, simulator_of

MB = 10**6


@pytest.mark.parametrize("seed", range(10))
def test_groups_are_acyclic_and_contain_every_op_once(seed):
    generator = random.Random(seed)
    graph = random_graph(generator, 30)
    if seed % 2:  # a module that computes between its children
        graph = replace(graph, edges=(*graph.edges, Edge(source="op9", target="op5", bytes_per_sample=1.0)))
    simulator = simulator_of(graph, random_cluster(generator, (2, 2)))
    groups = group_ops(graph, operations_of(graph), simulator.costs, BATCH, 8)
    assert len(groups) == 8
    assert sorted(op for group in groups for op in group.ops) == list(range(30))
    place = {graph.ops[op].name: number for number, group in enumerate(groups) for op in group.ops}
    assert all(
        place[edge.source] <= place[edge.target] for edge in graph.edges if (edge.source, edge.target) != ("op9", "op5")
    )
    if seed % 2:
        assert len({place[f"op{index}"] for index in range(5, 10)}) == 1


def test_cuts_are_the_best_of_all_and_a_large_layer_has_a_group_of_its_own():
    graph = random_graph(random.Random(3), 7)
    graph = replace(
        graph, ops=tuple(replace(op, param_bytes=100 * MB if op.name == "op4" else 1000) for op in graph.ops)
    )
    simulator = simulator_of(graph, random_cluster(random.Random(3), (1, 1)))
    groups = group_ops(graph, operations_of(graph), simulator.costs, BATCH, 3)
    assert (4,) in [group.ops for group in groups]


def test_islands_are_like_devices_of_a_host_and_sets_share_the_batch_as_devices_are_fast():
    total = 960  # enough for a sample on each device
    simulator = simulator_of(random_graph(random.Random(1), 5), random_cluster(random.Random(2), (2, 4)), total)
    assert islands(simulator.costs) == [(0, 1), (2, 3, 4, 5)]
    sets = device_sets(simulator.costs, total, 2)
    assert sets[0].ranks == (0, 1, 2, 3, 4, 5)
    assert len({one.ranks for one in sets}) == len(sets)
    assert {(0,), (0, 1), (2, 3), (4, 5), (5,), (0, 1, 2, 3), (0, 2, 3, 4, 5)} <= {one.ranks for one in sets}
    for one in sets:
        assert sum(one.samples) == total
        assert all(count > 0 and count % 2 == 0 for count in one.samples)


def test_of_many_islands_some_sets_are_taken():
    simulator = simulator_of(random_graph(random.Random(1), 3), random_cluster(random.Random(2), (4,) * 24), 192)
    sets = device_sets(simulator.costs, 192, 1, 40)
    assert len(sets) == 40
    assert len(sets[0].ranks) == max(len(one.ranks) for one in sets) > 64


@pytest.mark.parametrize("seed", range(8))
def test_the_best_chains_are_those_of_all_assignments(seed):
    problem = random_problem(seed, 1, num_groups=4, num_sets=4)
    estimate = problem.estimate
    per_byte, latency_s = estimate.hop_s
    num = problem.choices.micro_batches

    def along(assignment):
        own = sum(estimate.compute_s[group, chosen] * num for group, chosen in enumerate(assignment))
        sums = sum(
            problem.choices.groups[group].param_bytes * estimate.sum_s[0][chosen]
            for group, chosen in enumerate(assignment)
        )
        hops = sum(
            2 * num * (per_byte[a, b] * problem.choices.groups[place].passing_bytes + latency_s[a, b])
            for place, (a, b) in enumerate(pairwise(assignment))
        )
        return own + sums + hops

    every = sorted(along(one) for one in product(range(problem.num_sets), repeat=problem.num_groups))
    found = [along(one) for one in estimate.chains(10)]
    assert len(set(estimate.chains(10))) == 10
    assert found == pytest.approx(every[:10])


@pytest.mark.parametrize("seed", range(10))
def test_an_estimate_is_the_prediction_where_one_set_does_all_alone(seed):
    problem = random_problem(seed, 100)
    for assignment in problem.uniform():
        (chosen,) = set(assignment)
        if len(problem.choices.sets[chosen].ranks) == 1:
            simulated = problem.judge(assignment)[1]
            assert problem.estimate.step_s(assignment) == pytest.approx(simulated, rel=1e-9)


def test_better_shares_are_never_worse_and_keep_the_batch():
    problem = random_problem(5, 60)
    random_assignments(problem, random.Random(1))
    problem.most_simulations += 40
    value, plan = better_shares(problem, problem.plan(problem.best), problem.judged[problem.best])
    assert value <= problem.judged[problem.best]
    plan.validate(num_ranks=len(plan.batch.samples), global_batch=BATCH)


def test_a_prior_decides_what_a_tree_looks_at_first():
    problem = random_problem(2, 8, num_groups=3, num_sets=6)
    asked, size = [], problem.num_sets

    def prior(_problem, decided, group, /):
        asked.append((tuple(decided), group))
        return np.eye(size)[size - 1] * 0.999 + 0.001 / size

    tree(problem, random.Random(0), prior)
    first = problem.heaviest_first()[0]
    assert asked[0] == ((), first)
    assert asked[1] == (((first, size - 1),), problem.heaviest_first()[1])


def test_rewards():
    assert reward_of((0.1, 1.0), (0.0, 2.0)) == -1
    assert reward_of((0.0, 2.0), (0.0, 1.0)) == -0.5
    assert reward_of((0.0, 1.0), (0.0, 17.0)) == pytest.approx(2.0)


def test_what_is_too_large_to_be_simulated_is_as_bad_as_can_be(monkeypatch):
    monkeypatch.setattr("autotune.placement.groups.problem._MOST_PASSES", 3)
    problem = random_problem(5, 10)
    random_assignments(problem, random.Random(1))
    assert set(problem.judged.values()) >= {(np.inf, np.inf)}
    assert problem.num_simulations <= 10
