"""Orders of passes: the classic ones hold what they should, written ones are read back, bad ones are refused."""

from __future__ import annotations

import pytest

from autotune.workloads.errors import SpecError
from autotune.workloads.stage_order import FORWARD, SEARCHED, as_text, check_order, is_split, stage_passes


def most_held(passes) -> int:
    """Micro-batches between their forward and the end of their backward."""
    held, most = 0, 0
    for kind, _ in passes:
        held += (kind == FORWARD) - (kind in ("backward", "weight"))
        most = max(most, held)
    return most


@pytest.mark.parametrize(("stages", "count"), [(1, 3), (2, 2), (4, 8), (4, 2), (5, 12)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_classic_orders_are_whole_and_can_run(schedule: str, stages: int, count: int) -> None:
    texts = [as_text(passes) for passes in stage_passes(schedule, stages, count)]
    check_order(texts, stages, count)
    assert tuple(map(is_split, stage_passes(schedule, stages, count))) == (schedule == "zero-bubble",) * stages


def test_what_classic_orders_hold() -> None:
    assert [most_held(one) for one in stage_passes("gpipe", 4, 8)] == [8, 8, 8, 8]
    assert [most_held(one) for one in stage_passes("1f1b", 4, 8)] == [4, 3, 2, 1]
    assert max(most_held(one) for one in stage_passes("zero-bubble", 4, 8)) <= 4 + 1


def test_orders_are_written_and_read() -> None:
    text = "F0 F1 B0 B1"
    (passes,) = stage_passes(SEARCHED, 1, 2, (text,))
    assert passes == (("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1))
    assert as_text(passes) == text
    (halves,) = stage_passes(SEARCHED, 1, 1, ("F0 I0 W0",))
    assert halves == (("forward", 0), ("input", 0), ("weight", 0))


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (("F0 B0",), "orders for 1 stages but 2"),
        (("F0 B0", "F0 F0 B0"), "stage 1 does not have every pass"),
        (("F0 B0 F1 B1", "F0 B0"), "stage 0 does not have every pass"),
        (("F0 B0", "F0 I0"), "stage 1 does not have every pass"),
        (("F0 B0", "F0 X0"), "'X0'"),
        (("F0 B0", "F0 B"), "'B'"),
        (("B0 F0", "F0 B0"), "wait for ever: stage 0"),
        (("F0 B0", "F0 W0 I0"), "wait for ever"),
    ],
)
def test_orders_that_cannot_run_are_refused(order: tuple[str, ...], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        check_order(order, 2, 1)


def test_stages_that_disagree_wait_for_each_other() -> None:
    with pytest.raises(SpecError, match="wait for ever"):
        check_order(("F0 B0 F1 B1", "F1 B1 F0 B0"), 2, 2)
