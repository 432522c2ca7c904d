from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from autotune.runtime.reduce.completions import CompletionQueue, is_plain_thread

END_S = 5.0


class Completed:
    """The completed items, and the thread of each."""

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
def completed() -> Completed:
    return Completed()


@pytest.fixture
def queue(completed: Completed) -> Iterator[CompletionQueue[int]]:
    made = CompletionQueue(completed)
    yield made
    made.close(END_S)
    assert not made._thread.is_alive()


def test_items_complete_in_order_while_no_thread_waits(queue: CompletionQueue[int], completed: Completed) -> None:
    for number in range(100):
        queue.put(number)
    queue.close(END_S)
    assert completed.order == list(range(100))
    assert set(completed.threads) == {"autotune-complete"}


def test_a_waiting_thread_completes_what_is_put_meanwhile(queue: CompletionQueue[int], completed: Completed) -> None:
    later = threading.Timer(0.1, queue.put, [7])
    later.start()
    assert queue.wait_until(lambda: completed.order == [7], END_S)
    assert completed.threads == [threading.current_thread().name]


def test_deferred_items_complete_when_a_thread_waits(queue: CompletionQueue[int], completed: Completed) -> None:
    for number in range(3):
        queue.put(number, now=False)
    time.sleep(0.05)
    assert completed.order == []
    assert queue.wait_until(lambda: len(completed.order) == 3, END_S)
    assert completed.threads == [threading.current_thread().name] * 3
    queue.put(3, now=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # the queue's thread must do it
        assert queue.wait_until(lambda: len(completed.order) == 4, END_S)
    queue.put(4, now=False)
    queue.close(END_S)
    assert completed.order == [0, 1, 2, 3, 4]


def test_a_waiting_thread_leaves_a_begun_item_to_the_queue(queue: CompletionQueue[int], completed: Completed) -> None:
    completed.gate.clear()
    for number in range(3):
        queue.put(number)
    assert completed.begun.wait(END_S)
    threading.Timer(0.1, completed.gate.set).start()
    assert queue.wait_until(lambda: len(completed.order) == 3, END_S)
    assert completed.order == [0, 1, 2]
    assert completed.threads[0] == "autotune-complete"


def test_the_thread_of_the_queue_goes_on_after_a_wait(queue: CompletionQueue[int], completed: Completed) -> None:
    threading.Timer(0.05, lambda: [queue.put(number) for number in range(5)]).start()
    assert queue.wait_until(lambda: completed.order[:1] == [0], END_S)
    queue.close(END_S)
    assert completed.order == [0, 1, 2, 3, 4]


def test_a_wait_ends_in_time_or_when_there_is_nothing_to_wait_for(queue: CompletionQueue[int]) -> None:
    assert not queue.wait_until(lambda: False, 0.05)
    given_up = threading.Event()

    def give_up() -> None:
        given_up.set()
        queue.wake()

    threading.Timer(0.05, give_up).start()
    assert queue.wait_until(given_up.is_set, END_S)


def test_a_torch_mode_of_the_waiting_thread_does_not_apply_to_completions(
    queue: CompletionQueue[int], completed: Completed
) -> None:
    contexts = [torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode(), torch.device("meta")]
    for number, context in enumerate(contexts):
        with context:
            assert not is_plain_thread()
            queue.put(number)
            assert queue.wait_until(lambda: len(completed.order) > number, END_S)  # noqa: B023 - called in this iteration
    assert completed.threads == ["autotune-complete"] * len(contexts)
    with torch.no_grad():
        assert is_plain_thread()
