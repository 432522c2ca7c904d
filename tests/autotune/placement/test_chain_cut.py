"""Cuts of a chain into stages: the exact one against trying everything; blocks of a cut; costs of a real model."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from autotune.placement.chain_costs import Cut, StageCosts, at_cuts, cut_blocks, stage_costs
from autotune.placement.chain_cut import best_cut, chain_cut, cuts, estimate_s, judge, ordered_cut
from autotune.schedule.check import replay
from autotune.schedule.search import search
from autotune.simulate.cost_sources import cost_model
from autotune.workloads.errors import InfeasiblePlanError
from tests.autotune.simulate.test_closed_forms import make_cluster, make_graph


def random_costs(seed, num_devices=3, num_ops=6, *, alike=False, per_byte=0.5):
    draw = np.random.default_rng(seed)
    speeds = np.ones((num_devices, 1)) if alike else draw.uniform(0.5, 2.0, (num_devices, 1))
    ops = draw.uniform(0.5, 2.0, (1, num_ops))
    links = np.full((num_devices, num_devices), 0.1) if alike else draw.uniform(0.0, 0.5, (num_devices, num_devices))
    np.fill_diagonal(links, 0.0)
    return StageCosts(
        forward_s=ops * speeds,
        input_s=ops * speeds,
        weight_s=ops * speeds,
        boundary_bytes=draw.uniform(0.0, 2.0, num_ops),
        saved_bytes=np.ones(num_ops),
        held_bytes=np.ones(num_ops),
        memory_bytes=tuple(float(limit) for limit in draw.integers(5, 13, num_devices))
        if not alike
        else (9.0,) * num_devices,
        latency_s=links,
        seconds_per_byte=links * per_byte,
    )


def every_cut(costs):
    for stages in range(1, costs.num_devices + 1):
        for later in itertools.combinations(range(1, costs.num_ops), stages - 1):
            for devices in itertools.permutations(range(costs.num_devices), stages):
                yield Cut(first_ops=(0, *later), devices=devices)


def fits(costs, cut):
    ends = (*cut.first_ops[1:], costs.num_ops)
    return all(
        (costs.held_bytes + costs.saved_bytes)[first:end].sum() <= costs.memory_bytes[device]
        for first, end, device in zip(cut.first_ops, ends, cut.devices, strict=True)
    )


@pytest.mark.parametrize("per_byte", [0.5, 20.0], ids=["stages are busiest", "links are busiest"])
@pytest.mark.parametrize("count", [1, 4, 32])
@pytest.mark.parametrize("seed", range(8))
def test_the_cut_is_the_best_of_all(seed, count, per_byte):
    costs = random_costs(seed, alike=seed % 4 == 3, per_byte=per_byte)
    least = min((estimate_s(costs, cut, count) for cut in every_cut(costs) if fits(costs, cut)), default=math.inf)
    found = chain_cut(costs, count)
    if least == math.inf:
        assert found is None
    else:
        assert fits(costs, found)
        assert estimate_s(costs, found, count) == pytest.approx(least)


@pytest.mark.parametrize("per_byte", [0.5, 20.0], ids=["stages are busiest", "links are busiest"])
@pytest.mark.parametrize("seed", range(4))
def test_a_number_of_stages_can_be_asked_for(seed, per_byte):
    costs = random_costs(seed, per_byte=per_byte)
    for size in (1, 2, 3):
        sized = [cut for cut in every_cut(costs) if len(cut.devices) == size and fits(costs, cut)]
        found = chain_cut(costs, 4, size)
        if not sized:
            assert found is None
            continue
        assert len(found.devices) == size
        assert estimate_s(costs, found, 4) == pytest.approx(min(estimate_s(costs, cut, 4) for cut in sized))


@pytest.mark.parametrize("per_byte", [0.5, 20.0], ids=["stages are busiest", "links are busiest"])
@pytest.mark.parametrize("seed", range(4))
def test_devices_in_a_given_order_are_cut_for_exactly(seed, per_byte):
    costs = random_costs(seed, per_byte=per_byte)
    for order in itertools.permutations(range(3), 2):
        possible = [cut for cut in every_cut(costs) if cut.devices == order and fits(costs, cut)]
        found = ordered_cut(costs, 8, order)
        if not possible:
            assert found is None
            continue
        assert found.devices == order
        assert estimate_s(costs, found, 8) == pytest.approx(min(estimate_s(costs, cut, 8) for cut in possible))


def test_with_many_microbatches_the_busiest_link_matters_more_than_the_shortest_way():
    """(0, 2, 3) has the shorter way, 2·(2·1 + 3·10) s on links instead of 2·(20·1 + 2·10), but keeps one of them busy for 30 s."""
    links = np.array([[0.0, 1.0, 10.0], [1.0, 0.0, 10.0], [10.0, 10.0, 0.0]])
    costs = dataclasses.replace(
        random_costs(0, num_ops=4, alike=True), boundary_bytes=np.array([0.0, 20.0, 2.0, 3.0]), seconds_per_byte=links
    )
    assert ordered_cut(costs, 1, (0, 1, 2)).first_ops == (0, 2, 3)
    assert ordered_cut(costs, 32, (0, 1, 2)).first_ops == (0, 1, 2)


def test_many_unlike_devices_are_cut_for_in_some_orders():
    costs = dataclasses.replace(random_costs(5, num_devices=14, num_ops=20), memory_bytes=(99.0,) * 14)
    found = cuts(costs, 16, 12)
    assert found
    assert all(len(set(cut.devices)) == len(cut.first_ops) == 12 for cut in found)
    assert best_cut(lambda count: costs, (16,), max_moves=5, num_stages=12).makespan_s > 0


def test_ops_between_cuts_are_one():
    costs = random_costs(2)
    merged = at_cuts(costs, (0, 2, 5))
    assert merged.num_ops == 3
    assert merged.forward_s[1] == pytest.approx(
        [costs.forward_s[1, :2].sum(), costs.forward_s[1, 2:5].sum(), costs.forward_s[1, 5]]
    )
    assert list(merged.boundary_bytes) == [costs.boundary_bytes[op] for op in (0, 2, 5)]
    whole = estimate_s(costs, Cut(first_ops=(0, 2), devices=(0, 1)), 4)
    assert estimate_s(merged, Cut(first_ops=(0, 1), devices=(0, 1)), 4) == pytest.approx(whole)


def test_the_search_of_cuts_is_no_worse_than_the_exact_cut():
    found = best_cut(lambda count: random_costs(0), (4, 8))
    for count in (4, 8):
        exact = judge(random_costs(0), chain_cut(random_costs(0), count), count)
        assert found.makespan_s <= exact.makespan_s * (1 + 1e-9)
    assert not replay(search(found.graph, found.num_microbatches, time_s=1.0).table).faults


def test_no_cut_that_fits_is_said():
    costs = dataclasses.replace(random_costs(0), memory_bytes=(1.0, 1.0, 1.0))
    assert chain_cut(costs, 4) is None
    with pytest.raises(InfeasiblePlanError, match="no cut into stages"):
        best_cut(lambda count: costs, (4,))


def test_costs_of_a_model_become_blocks_with_links_and_memory():
    graph = make_graph(4, saved=10.0, output=1e6)
    costs = stage_costs(graph, cost_model(graph, make_cluster([1e6, 1e6], latency_s=0.5)), samples=2)
    blocks = cut_blocks(costs, Cut(first_ops=(0, 3), devices=(1, 0)))
    names = {block.name: block for block in blocks.blocks}
    assert names["f0"].seconds == pytest.approx(6.0)
    assert names["b1"].split == pytest.approx((2.0, 2.0))
    assert (names["f0"].memory, names["b0"].memory) == (60.0, -60.0)
    assert names["b1"].devices == (0,)
    assert blocks.link_s[1][0] == pytest.approx(0.5 + 2.0)  # latency, and 2 MB at 1 MB/s
