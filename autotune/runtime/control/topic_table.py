"""The topics that a rank has open, their scopes, and messages that came before the rank has opened their topic."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

from autotune.runtime.control.wire import Frame, Joiner, WireError

_LOG = logging.getLogger("autotune")
JOB_SCOPE = 0
"""The scope of the whole job."""
_MOST_EARLY_BYTES = 1 << 28
Key = tuple[int, int]
"""A scope, and the number of a topic in it."""


class Handler(Protocol):
    """Receives the messages of a topic. The network's thread makes all calls: they must not wait for another message."""

    def from_child(self, child: int, payload: bytes) -> None:
        """A message that a child has sent to its parent, which is this rank."""

    def from_rank(self, rank: int, payload: bytes) -> None:
        """On rank 0: a message that any rank has sent to rank 0."""

    def from_root(self, payload: bytes) -> None:
        """A message of rank 0 to all ranks; not called on rank 0 itself."""

    def lost(self, why: str) -> None:
        """A rank has ended or failed, so nothing that needs all ranks will happen. May be called more than once."""


Call = Callable[[Handler, bytes], None]


class TopicTable:
    """Delivers messages. Not thread-safe: the network's thread makes all calls."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._handlers: dict[Key, Handler] = {}
        self._num_opened: defaultdict[int, int] = defaultdict(int)
        self._early: defaultdict[Key, list[tuple[Call, bytes]]] = defaultdict(list)
        self._num_early_bytes = 0
        self._failed_scopes: dict[int, str] = {}
        self._scope = JOB_SCOPE
        self._joiner = Joiner()

    def add(self, key: Key, handler: Handler, lost: str | None) -> None:
        """Open a topic, and deliver what has come for it. `lost`: why nothing will happen any more, if so."""
        self._num_opened[key[0]] = key[1] + 1
        self._handlers[key] = handler
        for call, payload in self._early.pop(key, ()):
            self._num_early_bytes -= len(payload)
            self._call(handler, call, payload)
        if (why := self._failed_scopes.get(key[0]) or lost) is not None:
            handler.lost(why)

    def remove(self, key: Key) -> None:
        self._handlers.pop(key, None)

    def deliver(self, frame: Frame, call: Call) -> None:
        """Hand the message that this frame completes to its topic."""
        key = (frame.scope, frame.number)
        payload = self._joiner.message(frame)
        if payload is None:
            return
        if (handler := self._handlers.get(key)) is not None:
            self._call(handler, call, payload)
        elif self._is_ahead(*key):
            self._num_early_bytes += len(payload)
            if self._num_early_bytes > _MOST_EARLY_BYTES:
                raise WireError("more messages for later topics than this rank keeps")
            self._early[key].append((call, payload))

    def enter(self, scope: int) -> None:
        """Forget the topics of the scopes before, except those of the job."""
        self._scope = scope
        for table in (self._handlers, self._early):
            for key in [key for key in table if JOB_SCOPE < key[0] < scope]:
                del table[key]
        self._num_early_bytes = sum(len(payload) for calls in self._early.values() for _, payload in calls)
        self._failed_scopes = {one: why for one, why in self._failed_scopes.items() if one >= scope}

    def fail(self, scope: int, why: str) -> None:
        """End the topics of a scope, those too that are opened later."""
        if scope >= self._scope and scope not in self._failed_scopes:
            self._failed_scopes[scope] = why
            self.lose(why, scope)

    def lose(self, why: str, scope: int | None = None) -> None:
        """End the topics of one scope, or all."""
        for key, handler in list(self._handlers.items()):
            if scope in (None, key[0]):
                handler.lost(why)

    def _is_ahead(self, scope: int, number: int) -> bool:
        """Whether this rank has not opened the topic yet; else it has closed it."""
        return scope > self._scope or (scope in (JOB_SCOPE, self._scope) and number >= self._num_opened[scope])

    def _call(self, handler: Handler, call: Call, payload: bytes) -> None:
        try:
            call(handler, payload)
        except Exception as error:  # noqa: BLE001 - the network goes on; what waits for this handler must not
            _LOG.debug("autotune: a handler of control messages has failed", exc_info=True)
            handler.lost(f"rank {self._rank}: {type(error).__name__}: {error}")
