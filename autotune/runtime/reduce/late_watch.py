"""Reports a long wait for other ranks. The waiting thread may be inside a collective, so another thread measures it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LATE_S = 10.0
_INTERVAL_S = 1.0


class LateWatch:
    """A thread that checks once a second whether a wait takes longer than `LATE_S`.

    Threads: the waiting thread calls `begin` and `end`; the watch's own thread reads `_since_s` and calls `report`.
    """

    def __init__(self, report: Callable[[], None]) -> None:
        """`report`: called once for each long wait."""
        self._report = report
        self._since_s: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="autotune-watch", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        self._since_s = time.monotonic()

    def end(self) -> None:
        self._since_s = None

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        reported_s: float | None = None
        while not self._ended.wait(_INTERVAL_S):
            since_s = self._since_s
            if since_s is not None and since_s != reported_s and time.monotonic() - since_s > LATE_S:
                reported_s = since_s
                self._report()
