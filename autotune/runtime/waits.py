"""How long a device had nothing to do because the host waited for other ranks: between stamps of the device.

While the host waits for one fusion buffer, an accelerator may update another one in a stream of its own: that is work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from autotune.runtime.device import Stamp

Between = tuple[Stamp, Stamp]
"""From and to."""


class Waits:
    """When a device had nothing to do because the host waited for other ranks. Used by one thread, or `so_far` by others."""

    def __init__(self, waits: Iterable[tuple[Between, Sequence[Between]]] = ()) -> None:
        self._waits = list(waits)

    def add(self, begun: Stamp, ended: Stamp, work: Sequence[Between] = ()) -> None:
        """Stamps before and after the host waited; what it waited for may have been there before. `work`: what the device
        did in another stream up to then, in order and never two at once, which is no waiting.
        """
        self._waits.append(((begun, ended), work))

    @property
    def seconds(self) -> float:
        """How long in all, since the last `take`."""
        return sum(end_s - begin_s for begin_s, end_s in self._idle())

    def so_far(self) -> Waits:
        """Those until now, for a thread that reads them later."""
        return Waits(self._waits)

    def take(self) -> tuple[tuple[float, float], ...]:
        """All waits since the last call: from and to."""
        idle, self._waits = tuple(self._idle()), []
        return idle

    def _idle(self) -> Iterator[tuple[float, float]]:
        for (begun, ended), work in self._waits:
            from_s, to_s = begun.seconds, ended.seconds
            for busy, free in work:
                if from_s < (until_s := min(busy.seconds, to_s)):
                    yield from_s, until_s
                from_s = max(from_s, free.seconds)
            if from_s < to_s:
                yield from_s, to_s
