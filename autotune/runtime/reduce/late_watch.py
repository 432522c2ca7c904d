"""Says so when this rank has waited for others for long: the wait itself may be deep in a collective that cannot be left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LATE_S = 10.0
_LOOK_S = 1.0


class LateWatch:
    """A thread that looks once a second. `begin` and `end` are called by the thread that waits."""

    def __init__(self, tell: Callable[[], None]) -> None:
        """`tell`: called once for each wait that is long."""
        self._tell = tell
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
        told_s: float | None = None
        while not self._ended.wait(_LOOK_S):
            since_s = self._since_s
            if since_s is not None and since_s != told_s and time.monotonic() - since_s > LATE_S:
                told_s = since_s
                self._tell()
