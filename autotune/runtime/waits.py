"""How long a device had nothing to do because the host waited for other ranks: between stamps of the device.

While the host waits for one fusion buffer, an accelerator may update another one in a stream of its own: that is work.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator

from autotune.runtime.device import Stamp

Between = tuple[Stamp, Stamp]
"""From and to."""


class Waits:
    """When a device had nothing to do because the host waited for other ranks. One thread calls, but for `add_work`."""

    def __init__(self, waits: Iterable[Between] = (), work: Iterable[Between] = ()) -> None:
        self._waits, self._work = list(waits), deque(work)

    def add(self, begun: Stamp, ended: Stamp) -> None:
        """Stamps before and after the host waited; what it waited for may have been there before."""
        self._waits.append((begun, ended))

    def add_work(self, begun: Stamp, ended: Stamp) -> None:
        """What the device does in another stream, which is no waiting. Any thread may call this."""
        self._work.append((begun, ended))

    @property
    def seconds(self) -> float:
        """How long in all, since the last `take`."""
        return sum(end_s - begin_s for begin_s, end_s in self._idle())

    def so_far(self) -> Waits:
        """Those until now, for a thread that reads them later."""
        return Waits(self._waits, self._work)

    def take(self) -> tuple[tuple[float, float], ...]:
        """All waits since the last call: from and to."""
        idle, self._waits = tuple(self._idle()), []
        while self._work and self._work[0][1].is_reached:  # later work may be done while the device waits again
            self._work.popleft()
        return idle

    def _idle(self) -> Iterator[tuple[float, float]]:
        waits = [(begun.seconds, ended.seconds) for begun, ended in self._waits]
        # By now every wait has ended: what the device has not reached it did in none of them.
        reached = [(begun.seconds, ended) for begun, ended in tuple(self._work) if waits and begun.is_reached]
        work = sorted((begun_s, ended.seconds if ended.is_reached else math.inf) for begun_s, ended in reached)
        for begun_s, to_s in waits:
            from_s = begun_s
            for busy_s, free_s in work:
                if from_s < (until_s := min(busy_s, to_s)):
                    yield from_s, until_s
                from_s = max(from_s, free_s)
            if from_s < to_s:
                yield from_s, to_s
