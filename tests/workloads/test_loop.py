"""What a workload may state of its loop, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.workloads.errors import SpecError
from autotune.workloads.workload import PLAIN_LOOP, Loop, check_loop, check_no_stages, loop_of


def workload(**stated: Any) -> Any:
    return SimpleNamespace(name="mine", global_batch=16, **{"min_samples": 1} | stated)


def test_a_workload_that_states_nothing_has_a_plain_loop() -> None:
    assert loop_of(workload()) == loop_of(workload(clip_norm=None, accumulate=None, autocast=None)) == PLAIN_LOOP
    assert PLAIN_LOOP.settings == {}
    assert loop_of(workload(min_samples=0)) == PLAIN_LOOP


def test_each_may_be_stated_on_its_own() -> None:
    assert loop_of(workload(clip_norm=2)).settings == {"clip_norm": 2}
    assert loop_of(workload(accumulate=16)).settings == {"accumulate": 16}
    assert loop_of(workload(autocast="float16")).settings == {"autocast": "float16"}
    assert loop_of(workload(accumulate=1)).settings == {}
    assert loop_of(workload(min_samples=2, accumulate=4)).passes(5) == (3, 2)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("clip_norm", 0, "must be a number above 0"),
        ("clip_norm", -1.0, "must be a number above 0"),
        ("clip_norm", float("inf"), "must be a number above 0"),
        ("clip_norm", float("nan"), "must be a number above 0"),
        ("clip_norm", True, "must be a number above 0"),
        ("clip_norm", "1", "must be a number above 0"),
        ("accumulate", 0, "must be a whole number from 1 to the batch, 16"),
        ("accumulate", 17, "must be a whole number from 1 to the batch, 16"),
        ("accumulate", 2.0, "must be a whole number from 1 to the batch, 16"),
        ("accumulate", True, "must be a whole number from 1 to the batch, 16"),
        ("autocast", "float8", "must be one of bfloat16, float16"),
        ("autocast", True, "must be one of bfloat16, float16"),
    ],
)
def test_wrong_values_are_refused_with_workload_value_and_rule(name: str, value: Any, rule: str) -> None:
    with pytest.raises(SpecError) as raised:
        check_loop(workload(**{name: value}))
    assert str(raised.value) == f"workload 'mine' states {name} = {value!r}: it {rule}, or left out"


@pytest.mark.parametrize("number", range(40))
def test_passes_are_as_equal_as_can_be_and_none_is_too_small(number: int) -> None:
    for accumulate in range(1, 9):
        for fewest in (1, 2, 3):
            sizes = Loop(accumulate=accumulate, min_samples=fewest).passes(number)
            assert sum(sizes) == number
            assert len(sizes) <= accumulate
            assert list(sizes) == sorted(sizes, reverse=True)
            assert not sizes or max(sizes) - min(sizes) <= 1
            assert number < fewest or min(sizes, default=fewest) >= fewest
            assert number < accumulate * fewest or len(sizes) == accumulate


def test_stages_are_refused_for_any_loop_but_the_plain_one() -> None:
    check_no_stages("mine", Loop(min_samples=2))
    with pytest.raises(SpecError, match=r"'mine' states clip_norm = 1\.0, accumulate = 4, but a plan"):
        check_no_stages("mine", Loop(clip_norm=1.0, accumulate=4))
