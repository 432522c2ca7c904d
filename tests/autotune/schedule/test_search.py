"""The search: the optimum where it can be known, bounds, the portfolio, what cannot be done."""

from __future__ import annotations

import dataclasses
import math

import pytest

from autotune.schedule.bounds import makespan_bound_s
from autotune.schedule.check import replay
from autotune.schedule.search import search
from autotune.workloads.blocks import Block, BlockGraph, split_backward
from autotune.workloads.errors import InfeasiblePlanError, SpecError
from tests.autotune.schedule.instances import least_makespan, random_chain, random_dag
from tests.autotune.schedule.shapes import SHAPES, forward_only, k_shape, nn_shape, v_shape

TESSEL = {("V", 32): 149, ("X", 32): 270, ("K", 32): 200, ("M", 128): 780, ("NN", 32): 268}


def assert_sound(answer):
    assert not replay(answer.table).faults
    assert answer.makespan_bound_s <= answer.replay.makespan_s * (1 + 1e-9)
    assert answer.period_bound_s <= answer.period_s * (1 + 1e-9)
    assert answer.replay.makespan_s <= min(answer.portfolio_s.values()) * (1 + 1e-9)


@pytest.mark.parametrize("shape", [name for name, _ in TESSEL])
def test_the_shapes_on_four_devices_are_proven_and_beat_tessel(shape):
    num = next(count for name, count in TESSEL if name == shape)
    answer = search(SHAPES[shape](4), num)
    assert_sound(answer)
    assert answer.proven
    assert answer.period_s == max(SHAPES[shape](4).work_s)
    assert answer.replay.makespan_s <= TESSEL[shape, num]
    assert max(answer.replay.peak_memory) <= (4 if shape in "VX" else 6)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_the_shapes_on_eight_devices_are_proven(shape):
    answer = search(SHAPES[shape](8), 32)
    assert_sound(answer)
    assert answer.proven


def brute_force_cases(count):
    chains = [(random_chain(seed, devices=(2, 2), whole=True), 3) for seed in range(count // 4)]
    split = [(random_chain(seed, devices=(2, 2), whole=True, split=True), 2) for seed in range(count // 4)]
    return chains + split + [(random_dag(seed), 2) for seed in range(count - 2 * (count // 4))]


def least_of_both(graph, num):
    return min(least_makespan(graph, num), least_makespan(split_backward(graph), num))


@pytest.mark.parametrize("case", range(16))
def test_small_problems_are_solved_to_the_optimum(case):
    graph, num = brute_force_cases(16)[case]
    least = least_of_both(graph, num)
    answer = search(graph, num)
    assert_sound(answer)
    assert answer.replay.makespan_s == pytest.approx(least)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_hundred_small_problems_are_solved_to_the_optimum_and_proven():
    for graph, num in brute_force_cases(100):
        answer = search(graph, num)
        assert_sound(answer)
        assert answer.replay.makespan_s == pytest.approx(least_of_both(graph, num))
        assert answer.makespan_bound_s == pytest.approx(answer.replay.makespan_s)


@pytest.mark.parametrize("seed", range(4))
def test_never_worse_than_the_portfolio(seed):
    assert_sound(search(random_chain(seed, devices=(4, 5), split=seed % 2 == 1), 6, time_s=1.0))


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_never_worse_than_the_portfolio_on_two_hundred_problems():
    for seed in range(200):
        graph = (
            random_chain(seed, split=seed % 2 == 1) if seed % 4 else random_dag(seed, devices=(4, 8), blocks=(6, 14))
        )
        assert_sound(search(graph, 4 + seed % 9, time_s=2.0))


def test_memory_for_one_micro_batch_leaves_them_one_by_one():
    graph = dataclasses.replace(v_shape(3), memory=(1.0,) * 3)
    answer = search(graph, 4)
    assert_sound(answer)
    assert answer.replay.peak_memory == (1.0, 1.0, 1.0)
    assert answer.replay.makespan_s == 4 * 12
    assert answer.period_s == 12.0
    assert answer.proven


def test_too_little_memory_names_block_device_and_amounts():
    graph = dataclasses.replace(v_shape(3), memory=(1.0, 0.5, 1.0))
    with pytest.raises(InfeasiblePlanError, match=r"block 'f1' takes 1 on device 1 but the limit is 0\.5"):
        search(graph, 4)


def test_two_forwards_on_a_device_must_fit_together():
    blocks = (
        Block(name="f0", devices=(0,), seconds=1.0, memory=2.0),
        Block(name="f1", devices=(0,), seconds=1.0, memory=2.0, after=("f0",)),
        Block(name="b1", devices=(0,), seconds=1.0, memory=-2.0, after=("f1",)),
        Block(name="b0", devices=(0,), seconds=1.0, memory=-2.0, after=("b1",)),
    )
    graph = BlockGraph(num_devices=1, memory=(3.0,), blocks=blocks)
    with pytest.raises(InfeasiblePlanError, match=r"'f1' takes 2 on device 0 beside the 2 .* limit is 3"):
        search(graph, 1)


def test_what_is_never_given_back_limits_the_micro_batches():
    block = Block(name="f0", devices=(0,), seconds=1.0, memory=1.0)
    graph = BlockGraph(num_devices=1, memory=(3.0,), blocks=(block,))
    assert search(graph, 3).replay.makespan_s == 3.0
    with pytest.raises(InfeasiblePlanError, match=r"leaves 1 on device 0 .*'f0'.* 4 after 4"):
        search(graph, 4)


def test_an_order_that_fits_is_found_where_the_obvious_one_does_not():
    blocks = (  # the greedy order takes `a` first and cannot take `c` then; `c d` first leaves room for `a b`
        Block(name="a", devices=(0,), seconds=1.0, memory=2.0),
        Block(name="b", devices=(0,), seconds=1.0, memory=-2.0, after=("a", "d")),
        Block(name="c", devices=(0,), seconds=1.0, memory=2.0),
        Block(name="d", devices=(0,), seconds=1.0, memory=-2.0, after=("c",)),
    )
    answer = search(BlockGraph(num_devices=1, memory=(2.0,), blocks=blocks), 2)
    assert_sound(answer)
    assert answer.replay.makespan_s == 8.0


def test_a_split_backward_fills_the_bubbles():
    def chain(*, split):
        blocks = [
            dataclasses.replace(b, seconds=2.0, split=(1.0, 1.0) if split else None) if b.memory < 0 else b
            for b in v_shape(4).blocks
        ]
        return dataclasses.replace(v_shape(4), blocks=tuple(blocks))

    whole, split = search(chain(split=False), 8), search(chain(split=True), 8)
    assert_sound(split)
    assert split.replay.makespan_s < whole.replay.makespan_s
    assert any(slot.block.endswith(".weight") for slot in split.table.slots())


@pytest.mark.parametrize("shape", [k_shape, nn_shape])
def test_inference_is_optimal_for_few_micro_batches(shape):
    graph = forward_only(shape(4))
    answer = search(graph, 4)
    assert_sound(answer)
    assert answer.replay.makespan_s == pytest.approx(answer.makespan_bound_s)


def test_times_need_not_be_whole_numbers():
    graph = random_chain(5, devices=(4, 4))
    answer = search(graph, 8, time_s=4.0)
    assert_sound(answer)
    assert answer.period_s >= max(graph.work_s) * (1 - 1e-9)


@pytest.mark.parametrize("amount", [1 / 3, 0.1, 99328.7])
def test_limits_that_are_just_reached_do_not_depend_on_rounding(amount):
    """Memory in any unit: two micro-batches fit exactly."""
    blocks = tuple(dataclasses.replace(block, memory=block.memory * amount) for block in v_shape(4).blocks)
    odd = BlockGraph(num_devices=4, memory=(amount * 2, amount * 2, amount, amount), blocks=blocks)
    whole = dataclasses.replace(v_shape(4), memory=(2.0, 2.0, 1.0, 1.0))
    found, expected = search(odd, 6), search(whole, 6)
    assert_sound(found)
    assert (found.period_s, found.proven) == (expected.period_s, True)
    assert found.replay.makespan_s == expected.replay.makespan_s


def test_progress_is_reported_and_only_gets_better():
    reported = []
    search(SHAPES["X"](4), 8, on_progress=reported.append)
    assert reported
    makespans = [progress.makespan_s for progress in reported]
    assert makespans == sorted(makespans, reverse=True)
    assert all(progress.makespan_bound_s <= progress.makespan_s for progress in reported)


def test_no_time_still_gives_an_answer():
    answer = search(SHAPES["X"](8), 8, time_s=0.0)
    assert_sound(answer)
    assert math.isfinite(answer.period_s)


def test_blocks_of_no_duration_are_allowed():
    blocks = tuple(dataclasses.replace(b, seconds=0.0) if b.name in ("f1", "b2") else b for b in v_shape(3).blocks)
    assert_sound(search(dataclasses.replace(v_shape(3), blocks=blocks), 3))
    nothing = tuple(dataclasses.replace(b, seconds=0.0) for b in v_shape(2).blocks)
    answer = search(dataclasses.replace(v_shape(2), blocks=nothing), 2)
    assert answer.replay.makespan_s == 0.0


def test_no_micro_batches_are_refused():
    with pytest.raises(SpecError, match="micro-batches is 0"):
        search(v_shape(2), 0)


def test_the_bound_of_a_chain_is_its_slowest_device_with_what_comes_before_and_after():
    assert makespan_bound_s(v_shape(4), 32) == 3 + 32 * 4 + 9


def test_a_device_waits_while_its_last_micro_batch_goes_through_others():
    """NN on 8 devices: after its last f0 device 0 waits for f1, f2, f3, as all it has left is on their devices as well."""
    assert makespan_bound_s(forward_only(nn_shape(8)), 16) == 16 * 3 + 3 + 4


LONG = 31
"""The graph of this seed takes longer than all others together."""


@pytest.mark.parametrize("seed", [*({*range(40)} - {LONG}), pytest.param(LONG, marks=pytest.mark.slow)])
def test_no_schedule_is_below_the_bound(seed):
    graph = random_dag(seed)
    assert makespan_bound_s(graph, 2) <= least_makespan(graph, 2) * (1 + 1e-9)
