"""Things are thought about one after the other, and whoever asked hears of it."""

from __future__ import annotations

import threading

import pytest

from autotune.online.background import at_once, thinking_aside, unhurried


def test_at_once_is_done_when_it_returns() -> None:
    assert at_once(lambda: 3).result(timeout=0) == 3


def test_aside_they_keep_their_order_and_nobody_waits() -> None:
    think, may_go, order = thinking_aside(), threading.Event(), []
    first = think(lambda: may_go.wait(20) and order.append(1))
    second = think(lambda: order.append(2))
    assert not first.done()
    assert not second.done()
    may_go.set()
    second.result(timeout=20)
    assert order == [1, 2]


def test_what_fails_is_told_and_the_next_is_done() -> None:
    think = thinking_aside()
    failed = think(lambda: 1 / 0)
    assert think(lambda: 5).result(timeout=20) == 5
    with pytest.raises(ZeroDivisionError):
        failed.result(timeout=0)


def test_only_aside_there_is_a_breath_before_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    breaths: list[float] = []
    monkeypatch.setattr("autotune.online.background.time.sleep", breaths.append)
    assert list(unhurried([1, 2, 3])) == [1, 2, 3]
    assert breaths == []
    assert thinking_aside()(lambda: list(unhurried([1, 2, 3]))).result(timeout=20) == [1, 2, 3]
    assert len(breaths) == 3
