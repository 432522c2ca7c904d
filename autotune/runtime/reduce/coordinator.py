"""How ranks agree on the order of collectives: every rank reports ready rounds to rank 0, rank 0 schedules for all
ranks.

Reports join on their way up the tree of ranks; schedules go down it, encoded once (`control.network`). Rank 0 schedules
in the thread that brings an event (a ready round, a completed partition), so a decision needs no thread switch. After a
failure nothing more is scheduled, but every rank that is alive still posts what was scheduled before, so no collective
is left half joined. The agreement ends once every rank has left or is gone.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from autotune.runtime.control.network import Network
from autotune.runtime.control.ready import (
    ReadyRanks,
    ReadyRound,
    ReadyRounds,
    ScheduledPartition,
    ScheduleReader,
    pack_schedule,
)
from autotune.runtime.reduce.send_order import SendOrder

_READY, _SCHEDULED, _FAILED, _GOODBYE, _END, _LATE, _LEFT = (bytes([number]) for number in range(1, 8))
"""Messages: one of these, and its content."""
_STEP = struct.Struct("<Q")

_COLLECT_S = 1.0
"""How long rank 0 collects the ranks that report a long wait, which they do at about the same time."""
_LEFT_S = 0.2
"""How long rank 0 collects the ranks that have left, before it names them to the others: mostly all leave at once."""
_LOG = logging.getLogger("autotune")

Post = Callable[[ScheduledPartition], None]
Fail = Callable[[str], None]


class Endpoint(Protocol):
    """One rank's access to the schedule. It calls `post` for each scheduled partition, in order, and `fail` on a
    failure.

    Threads: any thread may call any method. `post` and `fail` run in the calling thread or in the endpoint's own.
    """

    def mark_ready(self, ready: ReadyRound) -> None:
        """This rank has a round ready."""

    def completed(self, num_bytes: int) -> None:
        """A partition has completed on this rank."""

    def fail(self, error: str) -> None:
        """This rank has failed: end the exchange on all ranks."""

    def late(self, step: int) -> None:
        """This rank has waited for long for gradients of this step."""

    def left(self) -> list[int]:
        """Ranks that need nothing more, and had left in order before any failure: ranks that leave after it do so because of it."""

    def leave(self, error: str | None, timeout_s: float) -> None:
        """This rank has ended or failed. Waits for the other ranks up to the timeout; nothing is posted after it."""


class Coordinator:
    """The endpoint of rank 0, which schedules for all ranks.

    Threads: see `Endpoint`; the network's thread calls the handler's methods. `_deciding` guards the send order, the failure
    and the sets of ranks, and keeps messages and posts in the order of decisions; nothing is sent or posted under it.
    `post` runs in one thread at a time.
    """

    def __init__(self, network: Network, order: SendOrder, post: Post, fail: Fail) -> None:
        self._size, self._order, self._fail = network.size, order, fail
        self._posts = OneAtATime(post)
        self._ready = ReadyRounds(network.size)
        self._deciding = threading.Lock()
        self._failure: str | None = None
        self._left = False
        self._left_ranks: list[int] = []
        self._to_name: list[int] = []
        """Ranks that have left, which the others do not know yet."""
        self._gone: set[int] = set()
        self._late: set[int] = set()
        self._ended = threading.Event()
        self._topic = network.topic()
        self._topic.open(self)

    def mark_ready(self, ready: ReadyRound) -> None:
        self._add_ready(ReadyRanks.of(0, ready))

    def completed(self, num_bytes: int) -> None:
        with self._deciding:
            self._order.completed(num_bytes)
            self._schedule()
        self._carry_out()

    def fail(self, error: str) -> None:
        self._end_with(f"rank 0: {error}")

    def late(self, step: int) -> None:
        self._add_late(0, step)

    def left(self) -> list[int]:
        return list(self._left_ranks)

    def leave(self, error: str | None, timeout_s: float) -> None:
        if error is not None:
            self.fail(error)
        with self._deciding:
            self._left = True
            if self._size > 1 and self._failure is None:
                self._add_left(0)
            self._end_if_all_left()
        self._topic.flush()
        self._ended.wait(timeout_s)
        self._topic.close()

    # -- called by the network -----------------------------------------------------------------------------------------

    def from_child(self, child: int, payload: bytes) -> None:  # noqa: ARG002 - the message names its ranks
        try:
            self._add_ready(ReadyRanks.unpack(payload, 1))
        except Exception as error:  # noqa: BLE001 - what cannot be scheduled is a failure everywhere
            self.fail(f"{type(error).__name__}: {error}")

    def from_rank(self, rank: int, payload: bytes) -> None:
        kind, content = payload[:1], payload[1:]
        if kind == _LATE:
            self._add_late(rank, *_STEP.unpack(content))
            return
        with self._deciding:
            if kind == _GOODBYE and self._failure is None:
                self._add_left(rank)
            self._gone.add(rank)
            self._end_if_all_left()
        self._topic.flush()
        if kind == _FAILED:
            self._end_with(f"rank {rank}: {content.decode()}")

    def from_root(self, payload: bytes) -> None:
        """Never: this is rank 0."""

    def lost(self, why: str) -> None:
        self._end_with(why)
        self._ended.set()  # the others find the same, and wait for nothing more

    # -- deciding --------------------------------------------------------------------------------------------------------

    def _add_ready(self, part: ReadyRanks) -> None:
        with self._deciding:
            if (ready := self._ready.add(part)) is not None:
                self._order.add(ready)
                self._schedule()
        self._carry_out()

    def _schedule(self) -> None:
        if self._failure is None and (scheduled := self._order.take()):
            self._topic.put_to_all(_SCHEDULED + pack_schedule(scheduled))
            self._posts.extend(scheduled)

    def _carry_out(self) -> None:
        """Send and post what has been decided."""
        self._topic.flush()
        try:
            self._posts.run()
        except Exception as error:  # noqa: BLE001 - what cannot be posted here is a failure everywhere
            self.fail(f"{type(error).__name__}: {error}")

    def _add_late(self, rank: int, step: int) -> None:
        """The first report starts a timer; the ranks that have not reported when it ends are the late ones."""
        with self._deciding:
            self._late.add(rank)
            if len(self._late) > 1:
                return
        _start_timer(_COLLECT_S, lambda: self._log_late(step))

    def _log_late(self, step: int) -> None:
        with self._deciding:
            waiting, self._late = self._late, set()
        missing = [rank for rank in range(self._size) if rank not in waiting]
        names = ", ".join(map(str, missing)) or "none"
        _LOG.warning(
            "autotune: ranks %s have waited 10 s for the gradients of step %d; rank %s has not sent its own: is it slow, or has "
            "it skipped a step?",
            sorted(waiting),
            step,
            names,
        )

    def _add_left(self, rank: int) -> None:
        if rank:
            self._left_ranks.append(rank)
        self._to_name.append(rank)
        if len(self._to_name) == 1:
            _start_timer(_LEFT_S, self._name_left)

    def _name_left(self) -> None:
        """Name the ranks that have left to those that have not."""
        with self._deciding:
            if not self._ended.is_set():
                self._put_left()
        self._topic.flush()

    def _put_left(self) -> None:
        ranks, self._to_name = self._to_name, []
        if ranks:
            self._topic.put_to_all(_LEFT + struct.pack(f"<{len(ranks)}I", *ranks))

    def _end_if_all_left(self) -> None:
        if self._left and len(self._gone) == self._size - 1 and not self._ended.is_set():
            self._topic.put_to_all(_END)
            self._ended.set()

    def _end_with(self, failure: str) -> None:
        with self._deciding:
            if self._failure is not None or self._ended.is_set():
                return
            self._failure = failure
            self._put_left()  # a rank that has left before may be the cause of this failure
            self._topic.put_to_all(_FAILED + failure.encode())
        self._topic.flush()
        self._fail(failure)


class Follower:
    """The endpoint of any other rank: joins what the ranks below it have ready, and posts what rank 0 schedules.

    Threads: see `Endpoint`; the network's thread calls the handler's methods, and so `post` and `fail`. `_joining` guards
    the rounds that are ready in a part of the subtree; the list of ranks that have left only grows.
    """

    def __init__(self, network: Network, post: Post, fail: Fail) -> None:
        self._post, self._fail = post, fail
        self._rank = network.rank
        self._joining = threading.Lock()
        self._ready = ReadyRounds(network.place.num_below)
        self._reader = ScheduleReader()
        self._left_ranks: list[int] = []
        self._has_failed = False
        self._ended = threading.Event()
        self._topic = network.topic()
        self._topic.open(self)

    def mark_ready(self, ready: ReadyRound) -> None:
        self._add_ready(ReadyRanks.of(self._rank, ready))

    def completed(self, num_bytes: int) -> None:
        """The credit counts the completions on rank 0 only."""

    def fail(self, error: str) -> None:
        self._topic.to_root(_FAILED + error.encode())

    def late(self, step: int) -> None:
        self._topic.to_root(_LATE + _STEP.pack(step))

    def left(self) -> list[int]:
        return list(self._left_ranks)

    def leave(self, error: str | None, timeout_s: float) -> None:
        self._topic.to_root(_FAILED + error.encode() if error is not None else _GOODBYE)
        self._ended.wait(timeout_s)
        self._topic.close()

    # -- called by the network -----------------------------------------------------------------------------------------

    def from_child(self, child: int, payload: bytes) -> None:  # noqa: ARG002 - the message names its ranks
        self._add_ready(ReadyRanks.unpack(payload, 1))

    def from_rank(self, rank: int, payload: bytes) -> None:
        """Never: this is not rank 0."""

    def from_root(self, payload: bytes) -> None:
        kind = payload[:1]
        if kind == _SCHEDULED:
            self._post_all(payload)
        elif kind == _LEFT:
            ranks = struct.unpack(f"<{(len(payload) - 1) // 4}I", payload[1:])
            self._left_ranks += [rank for rank in ranks if rank not in self._left_ranks and rank != self._rank]
        elif kind == _FAILED:
            self._end_with(payload[1:].decode())
        elif kind == _END:
            self._ended.set()

    def lost(self, why: str) -> None:
        self._end_with(why)

    def _post_all(self, payload: bytes) -> None:
        if self._has_failed:
            return
        try:
            for partition in self._reader.read(payload, 1):
                self._post(partition)
        except Exception as error:  # noqa: BLE001 - what cannot be posted here is a failure everywhere
            self.fail(f"{type(error).__name__}: {error}")
            self._end_with(f"{type(error).__name__}: {error}")

    def _add_ready(self, part: ReadyRanks) -> None:
        with self._joining:
            ready = self._ready.add(part)
        if ready is not None:
            self._topic.to_parent(_READY + ready.pack())

    def _end_with(self, why: str) -> None:
        if not (self._has_failed or self._ended.is_set()):
            self._has_failed = True
            self._fail(why)
        self._ended.set()


class OneAtATime:
    """Calls `run` for each item, in the order of `extend`, in one thread at a time; no thread waits for another one."""

    def __init__(self, call: Post) -> None:
        self._call = call
        self._items: deque[ScheduledPartition] = deque()
        self._running = threading.Lock()

    def extend(self, items: list[ScheduledPartition]) -> None:
        self._items.extend(items)

    def run(self) -> None:
        while self._items:
            if not self._running.acquire(blocking=False):
                return  # the thread that runs takes these too
            try:
                while self._items:
                    self._call(self._items.popleft())
            finally:
                self._running.release()


def _start_timer(after_s: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(after_s, call)
    timer.daemon = True
    timer.start()
