"""What has been posted is waited for here, in that order, by one thread at a time.

A thread of its own does it while the rest of the program computes. Whoever has nothing to do until something has landed does
it in that thread's place, which saves waking two threads for each part; unless something is set for its own computing that
would hold for what lands as well (autocast, for instance). Nobody ever spins.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Landing(Generic[T]):
    """Calls `land` for each thing that was put, in that order; it must not raise."""

    def __init__(self, land: Callable[[T], None]) -> None:
        self._land = land
        self._lock = threading.Lock()
        self._work, self._news = threading.Condition(self._lock), threading.Condition(self._lock)
        """For the thread; for those who wait."""
        self._posted: deque[T] = deque()
        self._num_helpers = 0
        self._is_landing = self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="autotune-land", daemon=True)
        self._thread.start()

    def put(self, posted: T, *, now: bool = True) -> None:
        """It will land; unless `now`, when somebody waits for it, at the latest when this is closed."""
        with self._lock:
            self._posted.append(posted)
            if self._num_helpers:
                self._news.notify_all()
            elif now:
                self._work.notify()

    def wait_until(self, arrived: Callable[[], bool], timeout_s: float) -> bool:
        """Land things, or wait while somebody else does, until `arrived` or for so long; whether it has."""
        deadline = time.monotonic() + timeout_s
        helps = is_plain_thread()
        with self._lock:
            self._num_helpers += helps
            if not helps:
                self._work.notify()
            try:
                while not arrived():
                    if helps and self._is_free:
                        self._land_next()
                    elif not self._news.wait(deadline - time.monotonic()):
                        return arrived()
                return True
            finally:
                self._num_helpers -= helps
                if self._posted:  # of which some may be wanted now
                    self._work.notify()

    def wake(self) -> None:
        """Whoever waits is to look whether what they wait for has arrived, or never will."""
        with self._lock:
            self._news.notify_all()

    def close(self, timeout_s: float) -> None:
        """Land what there is, and end the thread."""
        with self._lock:
            self._has_ended = True
            self._work.notify()
        self._thread.join(timeout_s)

    @property
    def _is_free(self) -> bool:
        return bool(self._posted) and not self._is_landing

    def _run(self) -> None:
        with self._lock:
            while self._posted or not self._has_ended:
                if self._is_free and not self._num_helpers:
                    self._land_next()
                else:
                    self._work.wait()

    def _land_next(self) -> None:
        """Called with the lock, which others may have meanwhile."""
        posted = self._posted.popleft()
        self._is_landing = True
        self._lock.release()
        try:
            self._land(posted)
        finally:
            self._lock.acquire()
            self._is_landing = False
            self._news.notify_all()


def is_plain_thread() -> bool:
    """Whether tensors are computed with here as in a new thread."""
    return not (
        torch.is_inference_mode_enabled()
        or torch.is_autocast_enabled("cpu")
        or torch.is_autocast_enabled("cuda")
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
    )
