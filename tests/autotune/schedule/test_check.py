"""The checker finds what is wrong with a schedule, and nothing where nothing is."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.schedule.check import replay, require_valid
from autotune.workloads.blocks import Block, BlockGraph, Slot, Timetable

GRAPH = BlockGraph(
    num_devices=2,
    memory=(2.0, 1.0),
    blocks=(
        Block(name="f0", devices=(0,), seconds=1.0, memory=1.0),
        Block(name="f1", devices=(1,), seconds=1.0, memory=1.0, after=("f0",)),
        Block(name="b1", devices=(1,), seconds=2.0, memory=-1.0, after=("f1",)),
        Block(name="b0", devices=(0,), seconds=2.0, memory=-1.0, after=("b1",)),
        Block(name="end", devices=(0, 1), seconds=0.5, after=("b0",)),
    ),
    link_s=((0.0, 0.5), (0.25, 0.0)),
)


def slots(text):
    """ "f0 0 @ 1.5; ..." as slots."""
    parts = [entry.split() for entry in text.split(";")]
    return tuple(Slot(block=block, microbatch=int(number), start_s=float(start)) for block, number, _, start in parts)


VALID = Timetable(
    graph=GRAPH,
    num_microbatches=2,
    order=(
        slots("f0 0 @ 0; f0 1 @ 1; b0 0 @ 4.75; end 0 @ 7.0; b0 1 @ 7.75; end 1 @ 10"),
        slots("f1 0 @ 1.5; b1 0 @ 2.5; f1 1 @ 4.5; b1 1 @ 5.5; end 0 @ 7.5; end 1 @ 10"),
    ),
)


def test_a_valid_schedule_has_no_faults():
    order = (
        slots("f0 0 @ 0; f0 1 @ 1; b0 0 @ 4.75; b0 1 @ 7.75; end 0 @ 10; end 1 @ 10.5"),
        slots("f1 0 @ 1.5; b1 0 @ 2.5; f1 1 @ 4.5; b1 1 @ 5.5; end 0 @ 10; end 1 @ 10.5"),
    )
    found = require_valid(dataclasses.replace(VALID, order=order))
    assert found.makespan_s == 11.0
    assert found.busy_s == (7.0, 7.0)
    assert found.peak_memory == (2.0, 1.0)
    assert found.bubbles == (pytest.approx(4 / 11),) * 2


def test_a_block_on_two_devices_starts_at_once_on_both():
    assert any("different times" in fault for fault in replay(VALID).faults)


@pytest.mark.parametrize(
    ("device", "text", "fault"),
    [
        (
            0,
            "f0 0 @ 0; f0 1 @ 0.5; b0 0 @ 4.75; b0 1 @ 7.75; end 0 @ 10; end 1 @ 10.5",
            "before 'f0' of micro-batch 0 ends",
        ),
        (0, "f0 0 @ 0; f0 1 @ 1; b0 0 @ 4.5; b0 1 @ 7.75; end 0 @ 10; end 1 @ 10.5", "'b1' reaches it at 4.75"),
        (0, "f0 0 @ 0; b0 0 @ 4.75; b0 1 @ 7.75; end 0 @ 10; end 1 @ 10.5", "micro-batch 1 0 times"),
        (
            0,
            "f0 0 @ 0; f0 0 @ 1; f0 1 @ 2; b0 0 @ 4.75; b0 1 @ 7.75; end 0 @ 10; end 1 @ 10.5",
            "micro-batch 0 2 times",
        ),
        (0, "f1 0 @ 0; f0 1 @ 1; b0 0 @ 4.75; b0 1 @ 7.75; end 0 @ 10; end 1 @ 10.5", "not its own"),
        (0, "f9 0 @ 0; f0 1 @ 1; b0 0 @ 4.75; b0 1 @ 7.75; end 0 @ 10; end 1 @ 10.5", "unknown block 'f9'"),
        (0, "f0 2 @ 0; f0 1 @ 1; b0 0 @ 4.75; b0 1 @ 7.75; end 0 @ 10; end 1 @ 10.5", "which there is not"),
        (1, "f1 0 @ 1.5; f1 1 @ 2.5; b1 0 @ 3.5; b1 1 @ 5.5; end 0 @ 10; end 1 @ 10.5", "device 1 holds 2 of 1"),
    ],
)
def test_what_is_wrong_is_named(device, text, fault):
    order = [
        slots("f0 0 @ 0; f0 1 @ 1; b0 0 @ 4.75; b0 1 @ 7.75; end 0 @ 10; end 1 @ 10.5"),
        slots("f1 0 @ 1.5; b1 0 @ 2.5; f1 1 @ 4.5; b1 1 @ 5.5; end 0 @ 10; end 1 @ 10.5"),
    ]
    order[device] = slots(text)
    wrong = dataclasses.replace(VALID, order=tuple(order))
    assert any(fault in found for found in replay(wrong).faults)
    with pytest.raises(AssertionError, match="not valid"):
        require_valid(wrong)
