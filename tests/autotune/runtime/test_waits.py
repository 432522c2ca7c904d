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
    waits.add(Stamp(1.0), Stamp(5.0))
    for begun, ended in work:
        waits.add_work(Stamp(begun), Stamp(ended))
    assert waits.so_far().seconds == sum(end - begin for begin, end in idle)
    assert list(waits.take()) == idle
    assert waits.take() == ()


def test_what_was_there_before_is_not_waited_for() -> None:
    waits = Waits()
    waits.add(Stamp(5.0), Stamp(1.0))
    assert waits.seconds == 0


class Ahead(Stamp):
    """A point that the device has not reached: reading its time would block."""

    is_reached = False

    @property
    def seconds(self) -> float:
        raise AssertionError("the host waits for the device")


def test_work_counts_in_the_wait_in_which_it_is_done_not_in_which_it_is_queued() -> None:
    waits = Waits()
    waits.add_work(Stamp(4.0), Stamp(6.0))
    waits.add(Stamp(1.0), Stamp(2.0))
    waits.add(Stamp(3.0), Stamp(6.0))
    assert waits.take() == ((1.0, 2.0), (3.0, 4.0))


def test_work_that_is_queued_is_not_waited_for_and_counts_in_the_next_step() -> None:
    waits = Waits()
    waits.add(Stamp(1.0), Stamp(3.0))
    waits.add_work(Stamp(2.0), Ahead(0.0))
    waits.add_work(Ahead(0.0), Ahead(0.0))
    assert waits.take() == ((1.0, 2.0),)
    waits.add(Stamp(5.0), Stamp(6.0))
    assert waits.take() == ()
