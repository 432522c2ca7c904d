"""Names of passes are read back as they were written, and simulator, schedule and runtime use the same ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.workloads.blocks import BACKWARD, FORWARD, INPUT, WEIGHT, Block, BlockGraph, half_name, split_backward
from autotune.workloads.pass_names import PassName, parse_pass, pass_name, span_name

NUMBERS = st.integers(0, 200)
PASSES = st.builds(
    PassName,
    kind=st.sampled_from([FORWARD, BACKWARD, INPUT, WEIGHT]),
    stage=NUMBERS,
    replica=NUMBERS,
    slice=NUMBERS,
)


@given(PASSES)
def test_a_name_is_read_back_as_written(one: PassName) -> None:
    assert parse_pass(str(one)) == one


@given(PASSES, PASSES)
def test_different_passes_have_different_names(one: PassName, other: PassName) -> None:
    assert (str(one) == str(other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (PassName(kind=FORWARD, stage=0), "f0"),
        (PassName(kind=BACKWARD, stage=12), "b12"),
        (PassName(kind=INPUT, stage=1), "b1.input"),
        (PassName(kind=FORWARD, stage=1, replica=2), "f1.2"),
        (PassName(kind=WEIGHT, stage=1, replica=2, slice=3), "b1.2/3.weight"),
        (PassName(kind=BACKWARD, stage=1, slice=1), "b1/1"),
    ],
)
def test_names_as_they_are_shown(one: PassName, text: str) -> None:
    assert str(one) == text
    assert span_name(str(one), 3) == f"{text} micro-batch 3"


@pytest.mark.parametrize("name", ["", "f", "x0", "f0.input", "b0.other", "join", "b1.input.input", "f-1", "rf0"])
def test_other_blocks_are_no_passes(name: str) -> None:
    assert parse_pass(name) is None


def test_a_split_block_is_called_as_its_halves_are() -> None:
    whole = Block(name=pass_name(BACKWARD, 2, replica=1), devices=(0,), seconds=3.0, memory=-1.0, split=(1.0, 2.0))
    graph = split_backward(BlockGraph(num_devices=1, memory=(9.0,), blocks=(whole,)))
    assert [block.name for block in graph.blocks] == [half_name(whole.name, INPUT), half_name(whole.name, WEIGHT)]
    assert [block.name for block in graph.blocks] == [pass_name(kind, 2, replica=1) for kind in (INPUT, WEIGHT)]


def test_slices_of_a_share_are_one_pass_of_a_prediction() -> None:
    slices = [PassName(kind=FORWARD, stage=0, replica=1, slice=number) for number in range(3)]
    assert {str(one.whole_share) for one in slices} == {"f0.1"}
