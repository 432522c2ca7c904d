"""Waits of a device are what is left of the host's waits beside the work in other streams."""

from __future__ import annotations

import pytest

from autotune.runtime.device import Stamp
from autotune.runtime.waits import Waits


@pytest.mark.parametrize(
    ("work", "idle"),
    [
        ([], [(1.0, 5.0)]),
        ([(2.0, 3.0)], [(1.0, 2.0), (3.0, 5.0)]),
        ([(0.0, 2.0), (4.0, 9.0)], [(2.0, 4.0)]),
        ([(5.0, 6.0)], [(1.0, 5.0)]),
        ([(6.0, 7.0)], [(1.0, 5.0)]),
        ([(0.0, 1.0)], [(1.0, 5.0)]),
        ([(1.0, 3.0), (3.0, 5.0)], []),
    ],
)
def test_work_is_no_waiting(work: list[tuple[float, float]], idle: list[tuple[float, float]]) -> None:
    waits = Waits()
    waits.add(Stamp(1.0), Stamp(5.0), [(Stamp(begun), Stamp(ended)) for begun, ended in work])
    assert waits.so_far().seconds == sum(end - begin for begin, end in idle)
    assert list(waits.take()) == idle
    assert waits.take() == ()


def test_what_was_there_before_is_not_waited_for() -> None:
    waits = Waits()
    waits.add(Stamp(5.0), Stamp(1.0))
    assert waits.seconds == 0
