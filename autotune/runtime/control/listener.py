"""Accepts the children of this rank, and no other connection: it closes as soon as all of them are connected.

A connection that does not prove within seconds that it knows the job's secret is dropped and counted. Of more
unproven connections than a fixed number, one drawn at random is dropped: a flood cannot keep a child out, because a
child tries again.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field

from autotune.runtime.control.handshake import ANSWER_BYTES, check_answer, new_nonce

_MOST_UNPROVEN = 64
_PROVE_S = 5.0
"""How long a connection may take to prove itself."""
_BACKLOG = 128


class NotAllConnectedError(RuntimeError):
    """Children of this rank did not connect in time."""


@dataclass(slots=True, eq=False)
class _Unproven:
    """A connection before it has proved anything."""

    socket: socket.socket
    deadline: float
    nonce: bytes = field(default_factory=new_nonce)
    answer: bytes = b""


class Listener:
    """Listens on one address of this host. The thread that opens the network makes all calls."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._server = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        self._server.setblocking(False)
        self.address: tuple[str, int] = self._server.getsockname()[:2]
        self._unproven: list[_Unproven] = []
        self.num_rejected = 0

    def accept(
        self, children: Collection[int], *, rank: int, secret: bytes, deadline: float
    ) -> dict[int, socket.socket]:
        """The connections of these children; then nothing listens any more."""
        found: dict[int, socket.socket] = {}
        with selectors.DefaultSelector() as selector, self._server:
            selector.register(self._server, selectors.EVENT_READ)
            while len(found) < len(children):
                now = time.monotonic()
                if now > deadline:
                    missing = sorted(set(children) - set(found))
                    raise NotAllConnectedError(f"ranks {missing} did not connect to rank {rank} in time")
                for key, _ in selector.select(timeout=min(deadline - now, 0.2)):
                    if key.data is None:
                        self._add(selector)
                    elif (child := self._read(selector, key.data, rank, secret)) is not None:
                        if child in children and child not in found:
                            found[child] = key.data.socket
                        else:
                            key.data.socket.close()
                            self.num_rejected += 1
                for late in [one for one in self._unproven if one.deadline < time.monotonic()]:
                    self._reject(selector, late)
            for one in list(self._unproven):
                self._reject(selector, one)
        return found

    def close(self) -> None:
        self._server.close()

    def _add(self, selector: selectors.BaseSelector) -> None:
        try:
            sock, _ = self._server.accept()
        except OSError:  # it has gone again
            return
        sock.setblocking(False)
        one = _Unproven(sock, time.monotonic() + _PROVE_S)
        self._unproven.append(one)
        selector.register(sock, selectors.EVENT_READ, one)
        with suppress(OSError):
            sock.send(one.nonce)
        if len(self._unproven) > _MOST_UNPROVEN:
            self._reject(selector, secrets.choice(self._unproven))

    def _read(self, selector: selectors.BaseSelector, one: _Unproven, rank: int, secret: bytes) -> int | None:
        """The rank of the child that has proved itself with what has arrived."""
        if one not in self._unproven:
            return None
        try:
            more = one.socket.recv(ANSWER_BYTES - len(one.answer))
        except BlockingIOError:
            return None
        except OSError:
            more = b""
        one.answer += more
        if more and len(one.answer) < ANSWER_BYTES:
            return None
        proved = check_answer(secret, one.nonce, one.answer, parent=rank) if len(one.answer) == ANSWER_BYTES else None
        if proved is None:
            self._reject(selector, one)
            return None
        child, proof = proved
        selector.unregister(one.socket)
        self._unproven.remove(one)
        try:
            one.socket.send(proof)
        except OSError:  # the child tries again
            one.socket.close()
            return None
        return child

    def _reject(self, selector: selectors.BaseSelector, one: _Unproven) -> None:
        selector.unregister(one.socket)
        self._unproven.remove(one)
        one.socket.close()
        self.num_rejected += 1
