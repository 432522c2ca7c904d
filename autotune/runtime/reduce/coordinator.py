"""How ranks agree on the order of exchanges: rank 0 hears every rank's offers and tells every rank what is granted.

Rank 0 decides in whichever thread brings news, its own offers and landings included, so that a decision costs no change of
threads; a thread of its own only listens to the other ranks. After a failure nothing more is granted, but what was granted
before is posted by every rank that lives, so no collective is left half joined. It ends when every rank has said goodbye or
is gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from operator import attrgetter
from typing import Any, Protocol

from autotune.runtime.control.channel import Line, Switchboard
from autotune.runtime.reduce.send_order import Grant, Grants, Offer

_OFFER, _GRANT, _FAILED, _GOODBYE, _END = "offer", "grant", "failed", "goodbye", "end"
_LATE, _LEFT = "late", "left"
"""Messages: a list of one of these and what belongs to it."""
_of_offer = attrgetter(*(field.name for field in fields(Offer)))
_of_grant = attrgetter(*(field.name for field in fields(Grant)))

_COLLECT_S = 1.0
"""Ranks that wait for another say so at about the same time."""
_LOG = logging.getLogger("autotune")

Post = Callable[[Grant], None]
Fail = Callable[[str], None]


class Desk(Protocol):
    """A rank's way to the decisions. Grants are handed to its `post` in their order, a failure to its `fail`."""

    def offer(self, offer: Offer) -> None:
        """This rank has a round ready."""

    def landed(self, num_bytes: int) -> None:
        """A part has arrived on this rank."""

    def fail(self, error: str) -> None:
        """This rank cannot go on: tell the others."""

    def late(self, step: int) -> None:
        """This rank has waited for long for gradients of this step."""

    def left(self) -> list[int]:
        """Ranks that need nothing more."""

    def leave(self, error: str | None, timeout_s: float) -> None:
        """This rank needs nothing more, or has failed. Waits for the others so long; after that nothing is posted."""


class Coordinator:
    """Rank 0's desk, which serves the other ranks as well over `lines`, by rank from 1 on."""

    def __init__(self, lines: Sequence[Line], grants: Grants, post: Post, fail: Fail) -> None:
        self._ranks = {line: rank for rank, line in enumerate(lines, start=1)}
        self._listening = Switchboard(lines)
        self._grants, self._post, self._fail = grants, post, fail
        self._deciding = threading.Lock()
        self._failure: str | None = None
        self._left = False
        self._left_ranks: list[int] = []
        self._late: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="autotune-grants", daemon=True)
        self._thread.start()

    def offer(self, offer: Offer) -> None:
        with self._deciding:
            self._grants.offer(0, offer)
            self._grant()

    def landed(self, num_bytes: int) -> None:
        with self._deciding:
            self._grants.landed(num_bytes)
            self._grant()

    def fail(self, error: str) -> None:
        self._failed(f"rank 0: {error}")

    def late(self, step: int) -> None:
        self._is_late(0, step)

    def left(self) -> list[int]:
        return list(self._left_ranks)

    def leave(self, error: str | None, timeout_s: float) -> None:
        if error is not None:
            self.fail(error)
        with self._deciding:
            self._tell([_LEFT, 0])
            self._left = True
            self._end_if_all_left()
        self._ended.wait(timeout_s)
        for line in self._ranks:
            line.cut()
        self._thread.join()
        for line in self._ranks:
            line.close()

    def _listen(self) -> None:
        while self._listening:
            for line in self._listening.ready():
                try:
                    self._hear(line, line.receive())
                except EOFError:
                    self._gone(line)
                    self._failed(f"rank {self._ranks[line]} is gone")
                except Exception as error:  # noqa: BLE001 - what cannot be posted here is a failure everywhere
                    self.fail(f"{type(error).__name__}: {error}")
        self._listening.close()

    def _hear(self, line: Line, message: list[Any]) -> None:
        kind, *rest = message
        if kind == _OFFER:
            with self._deciding:
                self._grants.offer(self._ranks[line], Offer(*rest))
                self._grant()
            return
        if kind == _LATE:
            self._is_late(self._ranks[line], rest[0])
            return
        if kind == _GOODBYE:
            with self._deciding:
                self._left_ranks.append(self._ranks[line])
                self._tell([_LEFT, self._ranks[line]])
        self._gone(line)
        if kind == _FAILED:
            self._failed(f"rank {self._ranks[line]}: {rest[0]}")

    def _is_late(self, rank: int, step: int) -> None:
        """The first to say so starts a count of who else waits; the others are those that are waited for."""
        with self._deciding:
            self._late.add(rank)
            if len(self._late) > 1:
                return
        timer = threading.Timer(_COLLECT_S, self._name_late, [step])
        timer.daemon = True
        timer.start()

    def _name_late(self, step: int) -> None:
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

    def _gone(self, line: Line) -> None:
        with self._deciding:
            self._listening.drop(line)
            self._end_if_all_left()

    def _end_if_all_left(self) -> None:
        if self._left and not self._listening:
            self._tell([_END])
            self._ended.set()

    def _grant(self) -> None:
        if self._failure is not None or not (granted := self._grants.take()):
            return
        self._tell([_GRANT, *map(_of_grant, granted)])
        for grant in granted:
            self._post(grant)

    def _failed(self, why: str) -> None:
        with self._deciding:
            if self._failure is not None or self._ended.is_set():
                return
            self._failure = why
            self._tell([_FAILED, why])
        self._fail(why)

    def _tell(self, message: list[Any]) -> None:
        for line in self._ranks:
            with suppress(OSError):  # it is gone: its receiving end says so, or has said goodbye
                line.send(message)


class Follower:
    """The desk of any other rank: a line to rank 0, and a thread that waits for grants and posts them."""

    def __init__(self, line: Line, post: Post, fail: Fail) -> None:
        self._line, self._post, self._fail = line, post, fail
        self._left_ranks: list[int] = []
        self._thread = threading.Thread(target=self._listen, name="autotune-grants", daemon=True)
        self._thread.start()

    def offer(self, offer: Offer) -> None:
        self._say([_OFFER, *_of_offer(offer)])

    def landed(self, num_bytes: int) -> None:
        """Rank 0 counts its own landings."""

    def fail(self, error: str) -> None:
        self._say([_FAILED, error])

    def late(self, step: int) -> None:
        self._say([_LATE, step])

    def left(self) -> list[int]:
        return list(self._left_ranks)

    def leave(self, error: str | None, timeout_s: float) -> None:
        self._say([_FAILED, error] if error is not None else [_GOODBYE])
        self._thread.join(timeout_s)
        self._line.cut()
        self._thread.join()
        self._line.close()

    def _listen(self) -> None:
        try:
            while (message := self._line.receive())[0] in (_GRANT, _LEFT):
                if message[0] == _LEFT:
                    self._left_ranks.append(message[1])
                    continue
                for listed in message[1:]:
                    self._post(Grant(*listed))
            if message[0] == _FAILED:
                self._fail(message[1])
        except EOFError:
            self._fail("rank 0 is gone")
        except Exception as error:  # noqa: BLE001 - what cannot be posted here is a failure everywhere
            self.fail(f"{type(error).__name__}: {error}")
            self._fail(f"{type(error).__name__}: {error}")

    def _say(self, message: list[Any]) -> None:
        with suppress(OSError):  # the line is cut: that is how rank 0 knows
            self._line.send(message)
