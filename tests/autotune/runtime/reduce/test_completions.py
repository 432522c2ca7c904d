from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from autotune.runtime.reduce.completions import Landing, is_plain_thread

END_S = 5.0


class Landed:
    """What has landed, in which thread."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.threads: list[str] = []
        self.begun, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, number: int) -> None:
        self.begun.set()
        assert self.gate.wait(END_S)
        self.order.append(number)
        self.threads.append(threading.current_thread().name)


@pytest.fixture
def landed() -> Landed:
    return Landed()


@pytest.fixture
def landing(landed: Landed) -> Iterator[Landing[int]]:
    made = Landing(landed)
    yield made
    made.close(END_S)
    assert "autotune-land" not in {thread.name for thread in threading.enumerate()}


def test_things_land_in_order_while_nobody_waits(landing: Landing[int], landed: Landed) -> None:
    for number in range(100):
        landing.put(number)
    landing.close(END_S)
    assert landed.order == list(range(100))
    assert set(landed.threads) == {"autotune-land"}


def test_who_waits_lands_what_comes_meanwhile(landing: Landing[int], landed: Landed) -> None:
    later = threading.Timer(0.1, landing.put, [7])
    later.start()
    assert landing.wait_until(lambda: landed.order == [7], END_S)
    assert landed.threads == [threading.current_thread().name]


def test_what_nobody_needs_yet_lands_when_somebody_waits(landing: Landing[int], landed: Landed) -> None:
    for number in range(3):
        landing.put(number, now=False)
    time.sleep(0.05)
    assert landed.order == []
    assert landing.wait_until(lambda: len(landed.order) == 3, END_S)
    assert landed.threads == [threading.current_thread().name] * 3
    landing.put(3, now=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # the thread must, then
        assert landing.wait_until(lambda: len(landed.order) == 4, END_S)
    landing.put(4, now=False)
    landing.close(END_S)
    assert landed.order == [0, 1, 2, 3, 4]


def test_who_waits_leaves_to_the_thread_what_it_has_begun(landing: Landing[int], landed: Landed) -> None:
    landed.gate.clear()
    for number in range(3):
        landing.put(number)
    assert landed.begun.wait(END_S)
    threading.Timer(0.1, landed.gate.set).start()
    assert landing.wait_until(lambda: len(landed.order) == 3, END_S)
    assert landed.order == [0, 1, 2]
    assert landed.threads[0] == "autotune-land"


def test_the_thread_goes_on_when_nobody_waits_any_more(landing: Landing[int], landed: Landed) -> None:
    threading.Timer(0.05, lambda: [landing.put(number) for number in range(5)]).start()
    assert landing.wait_until(lambda: landed.order[:1] == [0], END_S)
    landing.close(END_S)
    assert landed.order == [0, 1, 2, 3, 4]


def test_a_wait_ends_in_time_or_when_there_is_nothing_to_wait_for(landing: Landing[int]) -> None:
    assert not landing.wait_until(lambda: False, 0.05)
    given_up = threading.Event()

    def give_up() -> None:
        given_up.set()
        landing.wake()

    threading.Timer(0.05, give_up).start()
    assert landing.wait_until(given_up.is_set, END_S)


def test_what_is_set_for_the_waiting_threads_own_computing_does_not_hold_for_what_lands(
    landing: Landing[int], landed: Landed
) -> None:
    contexts = [torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode(), torch.device("meta")]
    for number, context in enumerate(contexts):
        with context:
            assert not is_plain_thread()
            landing.put(number)
            assert landing.wait_until(lambda: len(landed.order) > number, END_S)  # noqa: B023 - called in this turn
    assert landed.threads == ["autotune-land"] * len(contexts)
    with torch.no_grad():
        assert is_plain_thread()
