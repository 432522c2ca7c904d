"""The store that process groups meet over, on the control network: no port of its own, and closed to strangers as that is.

Rank 0 puts all changes in order and sends them to all ranks. Every rank keeps a copy: what a rank publishes for a group,
every other rank reads.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from autotune.runtime.control.messages import decode, encode
from autotune.runtime.control.network import Network
from autotune.runtime.errors import PeerLostError

_TIMEOUT_S = 300.0


class NetworkStore(Store):
    """Made by all ranks together. torch calls it from any thread, without the interpreter's lock; `_changed` guards the copy.

    torch keeps no reference to the Python half of a store: its owner must, as long as any group uses it.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._rank = network.rank
        self._values: dict[str, bytes] = {}
        self._answers: dict[int, Any] = {}
        self._requests = itertools.count()
        self._changed = threading.Condition(threading.RLock())
        self._lost: str | None = None
        self._timeout = timedelta(seconds=_TIMEOUT_S)
        self._topic = network.topic(for_job=True)
        self._topic.open(self)

    def close(self) -> None:
        self._topic.close()

    def clone(self) -> NetworkStore:
        return self

    # -- what torch calls ------------------------------------------------------------------------------------------------

    def set(self, key: str, value: str | bytes) -> None:
        self._change("set", key, _bytes_of(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        with self._changed:
            return self._values[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        limit_s = (timeout or self._timeout).total_seconds()
        if not self._wait_for(lambda: all(key in self._values for key in keys), limit_s):
            missing = [key for key in keys if key not in self._values]
            raise TimeoutError(f"no rank has set {missing} within {limit_s:g} s")

    def check(self, keys: Sequence[str]) -> bool:
        with self._changed:
            return all(key in self._values for key in keys)

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", key, amount))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        answer: bytes = self._ask("compare_set", key, [_bytes_of(expected), _bytes_of(desired)])
        return answer

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete_key", key, None))

    def num_keys(self) -> int:
        with self._changed:
            return len(self._values)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    # -- called by the network -----------------------------------------------------------------------------------------

    def from_child(self, child: int, payload: bytes) -> None:
        """Never: requests go to rank 0."""

    def from_rank(self, rank: int, payload: bytes) -> None:
        self._decide(rank, decode(payload))

    def from_root(self, payload: bytes) -> None:
        self._apply(*decode(payload))

    def lost(self, why: str) -> None:
        with self._changed:
            self._lost = why
            self._changed.notify_all()

    # -- changes ----------------------------------------------------------------------------------------------------------

    def _change(self, kind: str, key: str, value: Any, request: int = -1) -> None:
        message = [kind, key, value, request]
        if self._rank == 0:
            self._decide(0, message)
        else:
            self._topic.to_root(encode(message))

    def _ask(self, kind: str, key: str, value: Any) -> Any:
        request = next(self._requests)
        self._change(kind, key, value, request)
        if not self._wait_for(lambda: request in self._answers, self._timeout.total_seconds()):
            raise TimeoutError(f"rank 0 did not answer a {kind} of {key!r} in time")
        with self._changed:
            return self._answers.pop(request)

    def _decide(self, rank: int, message: list[Any]) -> None:
        """Rank 0: make a change of any rank, and send it to all."""
        kind, key, value, request = message
        with self._changed:
            before = self._values.get(key)
            after, answer = _changed(kind, before, value)
            self._topic.put_to_all(encode([key, after, rank, request, answer]))
            self._apply(key, after, rank, request, answer)
        if rank == 0:
            self._topic.flush()  # else the network's thread sends all that it has read together in one message

    def _apply(self, key: str, value: bytes | None, rank: int, request: int, answer: Any) -> None:
        with self._changed:
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
            if rank == self._rank and request >= 0:
                self._answers[request] = answer
            self._changed.notify_all()

    def _wait_for(self, is_done: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not is_done():
                if self._lost is not None:
                    raise PeerLostError(self._lost)
                if not self._changed.wait(deadline - time.monotonic()):
                    return is_done()
        return True


def _changed(kind: str, before: bytes | None, value: Any) -> tuple[bytes | None, Any]:
    """The new value of a key, and the answer to the rank that asked."""
    if kind == "set":
        return value, None
    if kind == "add":
        total = int(before or b"0") + value
        return str(total).encode(), total
    if kind == "delete_key":
        return None, before is not None
    expected, desired = value
    if before == expected or (before is None and not expected):
        return desired, desired
    return before, before if before is not None else expected


def _bytes_of(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
