"""Background tasks: work that takes longer than a step may wait runs on a daemon thread, one task after another.

The thread shares the interpreter and a core with a rank that trains. A long task iterates through `yielding`, which
releases the interpreter before each item.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

Item = TypeVar("Item")
Submit = Callable[[Callable[[], Any]], "Future[Any]"]
"""Runs a task and returns its future, as `concurrent.futures.Executor.submit` does."""

_YIELD_S = 0.0005
_local = threading.local()


def run_inline(task: Callable[[], Any]) -> Future[Any]:
    """Run a task on the calling thread; its future is done on return."""
    done: Future[Any] = Future()
    done.set_result(task())
    return done


def background_thread() -> Submit:
    """Start a daemon thread that runs submitted tasks in order.

    A `ThreadPoolExecutor` joins its threads at exit. It would keep a process alive after another rank has aborted the job.
    """
    waiting: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()

    def run_tasks() -> None:
        _local.is_background = True
        while True:
            task, done = waiting.get()
            try:
                done.set_result(task())
            except Exception as error:  # noqa: BLE001 - the future raises it
                done.set_exception(error)
            del task, done

    def submit(task: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        waiting.put((task, done))
        return done

    threading.Thread(target=run_tasks, name="autotune-background", daemon=True).start()
    return submit


def yielding(items: Iterable[Item]) -> Iterator[Item]:
    """The items; on a background thread with a short sleep before each, which yields the interpreter to other threads."""
    is_background = getattr(_local, "is_background", False)
    for item in items:
        if is_background:
            time.sleep(_YIELD_S)
        yield item
