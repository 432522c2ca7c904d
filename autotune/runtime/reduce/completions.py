"""A queue of posted work: one thread at a time waits for each item, in the order of posting.

A thread of the queue does this while the rest of the program computes. A thread that calls `wait_until` does it instead
of that thread, which saves two thread switches per item. The exception is a caller with a thread-local torch mode
(autocast, for instance) that would also apply to the completed work. No thread spins.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from autotune.runtime.device import is_autocast_on

T = TypeVar("T")


class CompletionQueue(Generic[T]):
    """Calls `complete` for each item, in the order of `put`; `complete` must not raise.

    Threads: any thread may call `put`, `wait_until` and `wake`. `complete` runs in the queue's thread or in one that
    waits, never in two at once and never under the lock. The lock guards the items and the flags; `is_done` is called
    under it.
    """

    def __init__(self, complete: Callable[[T], None], *, waiters_help: bool = True) -> None:
        """`waiters_help`: whether threads in `wait_until` call `complete`; if it waits for a device, they had better not."""
        self._complete, self._waiters_help = complete, waiters_help
        self._lock = threading.Lock()
        self._work, self._changed = threading.Condition(self._lock), threading.Condition(self._lock)
        """For the queue's thread; for the threads in `wait_until`."""
        self._posted: deque[T] = deque()
        self._num_helpers = 0
        """Threads in `wait_until` that may call `complete`."""
        self._is_completing = self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="autotune-complete", daemon=True)
        self._thread.start()

    def put(self, posted: T, *, now: bool = True) -> None:
        """Add an item. Unless `now` it is completed once a thread waits, at the latest in `close`."""
        with self._lock:
            self._posted.append(posted)
            if self._num_helpers:
                self._changed.notify_all()
            elif now:
                self._work.notify()

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float) -> bool:
        """Complete items, or wait while another thread does, until `is_done` or the timeout; whether it is done."""
        deadline = time.monotonic() + timeout_s
        helps = self._waiters_help and is_plain_thread()
        with self._lock:
            self._num_helpers += helps
            if not helps:
                self._work.notify()
            try:
                while not is_done():
                    if helps and self._is_free:
                        self._complete_next()
                    elif not self._changed.wait(deadline - time.monotonic()):
                        return is_done()
                return True
            finally:
                self._num_helpers -= helps
                if self._posted:  # some of these may have been put with `now`
                    self._work.notify()

    def wake(self) -> None:
        """Let every thread in `wait_until` evaluate its condition again."""
        with self._lock:
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Complete the remaining items and end the thread."""
        with self._lock:
            self._has_ended = True
            self._work.notify()
        self._thread.join(timeout_s)

    @property
    def _is_free(self) -> bool:
        return bool(self._posted) and not self._is_completing

    def _run(self) -> None:
        with self._lock:
            while self._posted or not self._has_ended:
                if self._is_free and not self._num_helpers:
                    self._complete_next()
                else:
                    self._work.wait()

    def _complete_next(self) -> None:
        """Called with the lock held; releases it while `complete` runs."""
        posted = self._posted.popleft()
        self._is_completing = True
        self._lock.release()
        try:
            self._complete(posted)
        finally:
            self._lock.acquire()
            self._is_completing = False
            self._changed.notify_all()


def is_plain_thread() -> bool:
    """Whether no torch mode is set in this thread that a new thread would not have."""
    return not (
        torch.is_inference_mode_enabled()
        or is_autocast_on()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
    )
