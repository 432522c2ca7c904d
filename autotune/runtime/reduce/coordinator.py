"""How ranks agree on the order of collectives: every rank reports ready rounds to rank 0, rank 0 schedules for all
ranks.

Rank 0 schedules in the thread that brings an event (a ready round, a completed partition), so a decision needs no
thread switch; its own thread only receives from the other ranks. After a failure nothing more is scheduled, but every
rank that is alive still posts what was scheduled before, so no collective is left half joined. The agreement ends once
every rank has left or is gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from operator import attrgetter
from typing import Any, Protocol

from autotune.runtime.control.channel import ChannelSelector, ControlChannel
from autotune.runtime.reduce.send_order import ReadyRound, ScheduledPartition, SendOrder

_READY, _SCHEDULED, _FAILED, _GOODBYE, _END = "ready", "scheduled", "failed", "goodbye", "end"
_LATE, _LEFT = "late", "left"
"""Messages: a list of one of these kinds and its content."""
_fields_of_ready = attrgetter(*(field.name for field in fields(ReadyRound)))
_fields_of_scheduled = attrgetter(*(field.name for field in fields(ScheduledPartition)))

_COLLECT_S = 1.0
"""How long rank 0 collects the ranks that report a long wait, which they do at about the same time."""
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
        """Ranks that need nothing more."""

    def leave(self, error: str | None, timeout_s: float) -> None:
        """This rank has ended or failed. Waits for the other ranks up to the timeout; nothing is posted after it."""


class Coordinator:
    """The endpoint of rank 0, which also serves the other ranks. `channels`: those to ranks 1, 2, ...

    Threads: see `Endpoint`; a listener thread receives from the channels. `_deciding` guards the send order, the
    failure and the sets of ranks, and keeps messages to the ranks in the order of decisions; `post` runs under it,
    `fail` does not.
    """

    def __init__(self, channels: Sequence[ControlChannel], order: SendOrder, post: Post, fail: Fail) -> None:
        self._ranks = {channel: rank for rank, channel in enumerate(channels, start=1)}
        self._selector = ChannelSelector(channels)
        self._order, self._post, self._fail = order, post, fail
        self._deciding = threading.Lock()
        self._failure: str | None = None
        self._left = False
        self._left_ranks: list[int] = []
        self._late: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="autotune-schedule", daemon=True)
        self._thread.start()

    def mark_ready(self, ready: ReadyRound) -> None:
        with self._deciding:
            self._order.mark_ready(0, ready)
            self._schedule()

    def completed(self, num_bytes: int) -> None:
        with self._deciding:
            self._order.completed(num_bytes)
            self._schedule()

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
            self._send_to_all([_LEFT, 0])
            self._left = True
            self._end_if_all_left()
        self._ended.wait(timeout_s)
        for channel in self._ranks:
            channel.shut_down()
        self._thread.join()
        for channel in self._ranks:
            channel.close()

    def _listen(self) -> None:
        while self._selector:
            for channel in self._selector.ready():
                try:
                    self._handle(channel, channel.receive())
                except EOFError:
                    self._drop(channel)
                    self._end_with(f"rank {self._ranks[channel]} is gone")
                except Exception as error:  # noqa: BLE001 - what cannot be posted here is a failure everywhere
                    self.fail(f"{type(error).__name__}: {error}")
        self._selector.close()

    def _handle(self, channel: ControlChannel, message: list[Any]) -> None:
        kind, *rest = message
        if kind == _READY:
            with self._deciding:
                self._order.mark_ready(self._ranks[channel], ReadyRound(*rest))
                self._schedule()
            return
        if kind == _LATE:
            self._add_late(self._ranks[channel], rest[0])
            return
        if kind == _GOODBYE:
            with self._deciding:
                self._left_ranks.append(self._ranks[channel])
                self._send_to_all([_LEFT, self._ranks[channel]])
        self._drop(channel)
        if kind == _FAILED:
            self._end_with(f"rank {self._ranks[channel]}: {rest[0]}")

    def _add_late(self, rank: int, step: int) -> None:
        """The first report starts a timer; the ranks that have not reported when it ends are the late ones."""
        with self._deciding:
            self._late.add(rank)
            if len(self._late) > 1:
                return
        timer = threading.Timer(_COLLECT_S, self._log_late, [step])
        timer.daemon = True
        timer.start()

    def _log_late(self, step: int) -> None:
        with self._deciding:
            waiting, self._late = self._late, set()
        missing = [rank for rank in range(len(self._ranks) + 1) if rank not in waiting]
        names = ", ".join(map(str, missing)) or "none"
        _LOG.warning(
            "autotune: ranks %s have waited 10 s for the gradients of step %d; rank %s has not sent its own: is it slow, or has "
            "it skipped a step?",
            sorted(waiting),
            step,
            names,
        )

    def _drop(self, channel: ControlChannel) -> None:
        with self._deciding:
            self._selector.drop(channel)
            self._end_if_all_left()

    def _end_if_all_left(self) -> None:
        if self._left and not self._selector:
            self._send_to_all([_END])
            self._ended.set()

    def _schedule(self) -> None:
        if self._failure is not None or not (scheduled := self._order.take()):
            return
        self._send_to_all([_SCHEDULED, *map(_fields_of_scheduled, scheduled)])
        for partition in scheduled:
            self._post(partition)

    def _end_with(self, failure: str) -> None:
        with self._deciding:
            if self._failure is not None or self._ended.is_set():
                return
            self._failure = failure
            self._send_to_all([_FAILED, failure])
        self._fail(failure)

    def _send_to_all(self, message: list[Any]) -> None:
        for channel in self._ranks:
            with suppress(OSError):  # the rank is gone, which `_listen` finds, or has left
                channel.send(message)


class Follower:
    """The endpoint of any other rank: a channel to rank 0, and a thread that receives scheduled partitions and posts
    them.

    Threads: see `Endpoint`; `post` and `fail` run in the receiving thread. The channel locks its own sends, and no
    other state is shared but the list of ranks that have left, which only grows.
    """

    def __init__(self, channel: ControlChannel, post: Post, fail: Fail) -> None:
        self._channel, self._post, self._fail = channel, post, fail
        self._left_ranks: list[int] = []
        self._thread = threading.Thread(target=self._listen, name="autotune-schedule", daemon=True)
        self._thread.start()

    def mark_ready(self, ready: ReadyRound) -> None:
        self._send([_READY, *_fields_of_ready(ready)])

    def completed(self, num_bytes: int) -> None:
        """The credit counts the completions on rank 0 only."""

    def fail(self, error: str) -> None:
        self._send([_FAILED, error])

    def late(self, step: int) -> None:
        self._send([_LATE, step])

    def left(self) -> list[int]:
        return list(self._left_ranks)

    def leave(self, error: str | None, timeout_s: float) -> None:
        self._send([_FAILED, error] if error is not None else [_GOODBYE])
        self._thread.join(timeout_s)
        self._channel.shut_down()
        self._thread.join()
        self._channel.close()

    def _listen(self) -> None:
        try:
            while (message := self._channel.receive())[0] in (_SCHEDULED, _LEFT):
                if message[0] == _LEFT:
                    self._left_ranks.append(message[1])
                    continue
                for values in message[1:]:
                    self._post(ScheduledPartition(*values))
            if message[0] == _FAILED:
                self._fail(message[1])
        except EOFError:
            self._fail("rank 0 is gone")
        except Exception as error:  # noqa: BLE001 - what cannot be posted here is a failure everywhere
            self.fail(f"{type(error).__name__}: {error}")
            self._fail(f"{type(error).__name__}: {error}")

    def _send(self, message: list[Any]) -> None:
        with suppress(OSError):  # the channel is closed, which rank 0 finds too
            self._channel.send(message)
