"""What takes longer than a decision may is done aside: one thing after the other, by a thread that ends with the process.

It shares its interpreter and its core with a rank that trains, so it takes a breath before each piece (`unhurried`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

Item = TypeVar("Item")
Thinks = Callable[[Callable[[], Any]], "Future[Any]"]
"""Has something done, and says when it is."""

_BREATH_S = 0.0005
_here = threading.local()


def at_once(work: Callable[[], Any]) -> Future[Any]:
    """Done when it returns."""
    done: Future[Any] = Future()
    done.set_result(work())
    return done


def thinking_aside() -> Thinks:
    """A thread of its own. It must not keep a process alive that another rank has ended, as a pool's would."""
    waiting: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()

    def work() -> None:
        _here.is_aside = True
        while True:
            task, done = waiting.get()
            try:
                done.set_result(task())
            except Exception as error:  # noqa: BLE001 - whoever asked is told
                done.set_exception(error)
            del task, done

    def think(task: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        waiting.put((task, done))
        return done

    threading.Thread(target=work, name="autotune-thinks", daemon=True).start()
    return think


def unhurried(items: Iterable[Item]) -> Iterator[Item]:
    """Aside, with a breath before each, in which others get the interpreter; elsewhere as they are."""
    is_aside = getattr(_here, "is_aside", False)
    for item in items:
        if is_aside:
            time.sleep(_BREATH_S)
        yield item
