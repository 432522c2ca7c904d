"""A topic of the control network: one conversation of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.runtime.control import wire
from autotune.runtime.control.topic_table import Handler

if TYPE_CHECKING:
    from autotune.runtime.control.network import Network


class Topic:
    """One conversation of all ranks.

    Threads: any thread may call any method. Frames leave in the order of the calls of one thread, or of several that a lock
    of theirs keeps in order around `put_to_all`.
    """

    def __init__(self, network: Network, scope: int, number: int) -> None:
        self._network, self._key = network, (scope, number)

    def open(self, handler: Handler) -> None:
        """Receive messages from here on, and those that have come before."""
        self._network.open_topic(self._key, handler)

    def to_parent(self, payload: bytes) -> None:
        self._network.send_up(wire.HOP, self._key, payload)

    def to_root(self, payload: bytes) -> None:
        """Not on rank 0."""
        self._network.send_up(wire.TO_ROOT, self._key, payload)

    def to_all(self, payload: bytes) -> None:
        """On rank 0: to all other ranks."""
        self.put_to_all(payload)
        self.flush()

    def put_to_all(self, payload: bytes) -> None:
        """As `to_all`, but `flush` sends it: so the order can be decided under a lock, and no lock is held while sending."""
        self._network.put_to_all(self._key, payload)

    def flush(self) -> None:
        self._network.flush()

    def close(self) -> None:
        """No handler is called after this."""
        self._network.close_topic(self._key)
