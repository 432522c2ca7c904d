"""The line between rank 0 and the others on which the order of exchanges is agreed: small messages over TCP.

Not MPI, where nobody can wait without spinning or sleeping, and not gloo, where a receive cannot be given up and a message
waits behind the gradients on the same connection. A closed connection also is how ranks learn at once that one is gone.
Framing is `multiprocessing.connection`'s; a token that rank 0 tells the ranks over their process group keeps others out.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

_CARD_BYTES = 256
_OPEN_S, _CALLER_S = 30.0, 5.0
_TOKEN_BYTES = 16
_MOST_BYTES = 2**20


class LineError(RuntimeError):
    """The line could not be opened, or is broken."""


class Line:
    """One end. Messages are JSON-able values; any thread may send, one receives."""

    def __init__(self, wire: socket.socket) -> None:
        if wire.family != socket.AF_UNIX:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.setblocking(True)
        self._socket = wire
        self._sending = threading.Lock()
        self.connection = Connection(os.dup(wire.fileno()))

    def send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        with self._sending:
            self.connection.send_bytes(data)

    def receive(self) -> Any:
        """The next message; EOFError once the other end is gone."""
        try:
            return json.loads(self.connection.recv_bytes(_MOST_BYTES))
        except OSError as error:
            raise EOFError from error

    def cut(self) -> None:
        """Wake up whoever waits at either end."""
        with suppress(OSError):  # the other end was quicker
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self._socket.close()
        self.connection.close()


def open_lines(group: dist.ProcessGroup) -> list[Line]:
    """On rank 0 a line to every other rank, in their order; elsewhere the one to rank 0. Called by all ranks together."""
    hosts = _share(group, socket.gethostname())
    if group.rank() == 0:
        return _accept_all(group, "127.0.0.1" if len(set(hosts)) == 1 else _own_address())
    address, port, token = json.loads(_share(group, "")[0])
    wire = socket.create_connection((address, port), timeout=_OPEN_S)
    line = Line(wire)
    line.send([token, group.rank()])
    return [line]


class Switchboard:
    """Several lines, and one who listens to all of them."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines, self._selector = set(lines), selectors.DefaultSelector()
        for line in self._lines:
            self._selector.register(line.connection, selectors.EVENT_READ, line)

    def __len__(self) -> int:
        return len(self._lines)

    def ready(self) -> list[Line]:
        """Those with something to receive; waits for the first."""
        return [key.data for key, _ in self._selector.select()]

    def drop(self, line: Line) -> None:
        """It is not listened to any more."""
        self._lines.remove(line)
        self._selector.unregister(line.connection)

    def close(self) -> None:
        self._selector.close()


def _accept_all(group: dist.ProcessGroup, address: str) -> list[Line]:
    token = secrets.token_hex(_TOKEN_BYTES)
    lines: dict[int, Line] = {}
    with socket.create_server((address, 0)) as server:
        _share(group, json.dumps([address, server.getsockname()[1], token]))
        deadline = time.monotonic() + _OPEN_S
        while len(lines) < group.size() - 1:
            server.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                wire, _ = server.accept()
            except TimeoutError as error:
                raise LineError(f"{group.size() - 1 - len(lines)} ranks did not call within {_OPEN_S:g} s") from error
            line = Line(wire)
            if (rank := _caller(line, token)) is not None:
                lines[rank] = line
            else:
                line.close()
    return [lines[rank] for rank in range(1, group.size())]


def _caller(line: Line, token: str) -> int | None:
    """The rank that calls; None for a stranger."""
    try:
        given, rank = line.receive() if line.connection.poll(_CALLER_S) else ("", 0)
    except (EOFError, TypeError, ValueError):
        return None
    return int(rank) if hmac.compare_digest(str(given).encode(), token.encode()) else None


def _own_address() -> str:
    """Where the others reach this host: gloo's interface if one is set, else as gloo finds it, by the host's name."""
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        for known in psutil.net_if_addrs().get(interface, []):
            if known.family == socket.AF_INET:
                return str(known.address)
    return socket.gethostbyname(socket.gethostname())


def _share(group: dist.ProcessGroup, text: str) -> list[str]:
    """Every rank's short text, on every rank."""
    card = torch.zeros(_CARD_BYTES, dtype=torch.uint8)
    data = text.encode()
    if len(data) > _CARD_BYTES:
        raise LineError(f"{text!r} is longer than {_CARD_BYTES} bytes")
    card[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else 0
    cards = [torch.empty_like(card) for _ in range(group.size())]
    group.allgather([cards], [card], AllgatherOptions()).wait()
    return [bytes(one.tolist()).rstrip(b"\0").decode() for one in cards]
