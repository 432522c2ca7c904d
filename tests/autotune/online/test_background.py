"""Background tasks run in order, return their results and errors, and yield the interpreter."""

from __future__ import annotations

import threading

import pytest

from autotune.online.background import background_thread, run_inline, yielding


def test_an_inline_task_is_done_on_return() -> None:
    assert run_inline(lambda: 3).result(timeout=0) == 3


def test_background_tasks_run_in_order_without_blocking_the_caller() -> None:
    submit, may_go, order = background_thread(), threading.Event(), []
    first = submit(lambda: may_go.wait(20) and order.append(1))
    second = submit(lambda: order.append(2))
    assert not first.done()
    assert not second.done()
    may_go.set()
    second.result(timeout=20)
    assert order == [1, 2]


def test_a_failed_task_raises_in_its_future_and_the_next_one_runs() -> None:
    submit = background_thread()
    failed = submit(lambda: 1 / 0)
    assert submit(lambda: 5).result(timeout=20) == 5
    with pytest.raises(ZeroDivisionError):
        failed.result(timeout=0)


def test_only_background_tasks_yield_before_each_item(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr("autotune.online.background.time.sleep", sleeps.append)
    assert list(yielding([1, 2, 3])) == [1, 2, 3]
    assert sleeps == []
    assert background_thread()(lambda: list(yielding([1, 2, 3]))).result(timeout=20) == [1, 2, 3]
    assert len(sleeps) == 3
