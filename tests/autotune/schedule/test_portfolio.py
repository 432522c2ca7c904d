"""The classic schedules against what is known of them in closed form."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.schedule.check import replay
from autotune.schedule.memory import fitting_order
from autotune.schedule.portfolio import portfolio, split_portfolio
from autotune.workloads.blocks import Block, BlockGraph, split_backward
from tests.autotune.schedule.shapes import SHAPES, v_shape


def members(graph, num):
    return {member.name: member for member in portfolio(graph, num, fitting_order(graph, num))}


def uniform_chain(devices, *, forward=1.0, backward=2.0, memory=64.0, split=None):
    """Stages in the order of `devices`, all alike."""
    blocks, after = [], ()
    for stage, device in enumerate(devices):
        blocks.append(Block(name=f"f{stage}", devices=(device,), seconds=forward, memory=1.0, after=after))
        after = (f"f{stage}",)
    for stage, device in reversed(list(enumerate(devices))):
        name = f"b{stage}"
        blocks.append(Block(name=name, devices=(device,), seconds=backward, memory=-1.0, after=after, split=split))
        after = (name,)
    return BlockGraph(num_devices=max(devices) + 1, memory=(memory,) * (max(devices) + 1), blocks=tuple(blocks))


@pytest.mark.parametrize(("devices", "num"), [(2, 3), (4, 8), (5, 16)])
def test_gpipe_and_1f1b_have_the_bubble_and_memory_of_the_closed_forms(devices, num):
    found = members(uniform_chain(range(devices)), num)
    for name in ("gpipe", "1f1b"):
        assert found[name].makespan_s == (num + devices - 1) * 3.0
        assert replay(found[name].table).bubbles[0] == pytest.approx((devices - 1) / (num + devices - 1))
    assert replay(found["gpipe"].table).peak_memory == (float(num),) * devices
    peak = replay(found["1f1b"].table).peak_memory
    assert peak == tuple(float(min(devices - stage, num)) for stage in range(devices))


def test_interleaving_divides_the_bubble_by_the_stages_per_device():
    num, devices, chunks = 8, 4, 2
    chain = uniform_chain(list(range(devices)) * chunks)
    found = members(chain, num)["interleaved 1f1b"]
    assert found.makespan_s == num * chunks * 3.0 + (devices - 1) * 3.0


def test_zero_bubble_h1_has_a_third_of_the_bubble_of_1f1b():
    """Forward, input and weight parts alike (Qi et al. 2023): (p-1)(F+B-W) against (p-1)(F+B+W)."""
    num, devices = 12, 4
    chain = uniform_chain(range(devices), split=(1.0, 1.0))
    parts = split_backward(chain)
    found = {m.name: m for m in split_portfolio(chain, parts, num, fitting_order(parts, num))}
    assert found["zero-bubble H1"].makespan_s == num * 3.0 + (devices - 1) * 1.0
    assert found["zero-bubble H2"].makespan_s <= found["zero-bubble H1"].makespan_s
    assert found["1f1b, split"].makespan_s > found["zero-bubble H1"].makespan_s
    assert max(replay(found["zero-bubble H1"].table).peak_memory) <= devices


def test_a_v_shaped_chain_has_its_zero_bubble_schedule():
    chain = uniform_chain([0, 1, 1, 0], split=(1.0, 1.0))
    parts = split_backward(chain)
    assert "zero-bubble V" in {m.name for m in split_portfolio(chain, parts, 6, fitting_order(parts, 6))}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_member_keeps_every_rule(shape):
    found = members(SHAPES[shape](4), 6)
    assert "one by one" in found
    assert len(found) >= 4
    for member in found.values():
        assert not replay(member.table).faults


def test_gpipe_runs_in_groups_where_memory_is_short():
    found = members(dataclasses.replace(v_shape(3), memory=(2.0,) * 3), 6)
    assert max(replay(found["gpipe"].table).peak_memory) == 2.0
