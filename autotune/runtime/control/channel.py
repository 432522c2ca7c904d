"""Control channels between rank 0 and every other rank: small JSON messages over TCP.

MPI is not used here because a blocking MPI receive spins. Gloo is not used because a receive cannot be cancelled, and a
control message would queue behind the gradients on the same connection. A closed connection also tells a rank at once
that its peer is gone. `multiprocessing.connection` does the framing. Rank 0 shares a random token over the process
group and rejects connections that do not send it.
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

_TEXT_BYTES = 256
_OPEN_S, _TOKEN_S = 30.0, 5.0
_TOKEN_BYTES = 16
_MAX_MESSAGE_BYTES = 2**20


class ChannelError(RuntimeError):
    """A control channel could not be opened."""


class ControlChannel:
    """One end of a connection. Messages are JSON-able values.

    Threads: any thread may call `send` (a lock keeps messages whole) and `shut_down`. One thread at a time may call
    `receive`. `close` is called after that thread has ended.
    """

    def __init__(self, sock: socket.socket) -> None:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(True)
        self._socket = sock
        self._sending = threading.Lock()
        self.connection = Connection(os.dup(sock.fileno()))

    def send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        with self._sending:
            self.connection.send_bytes(data)

    def receive(self) -> Any:
        """Block until the next message; raise EOFError once the other end is gone."""
        try:
            return json.loads(self.connection.recv_bytes(_MAX_MESSAGE_BYTES))
        except OSError as error:
            raise EOFError from error

    def shut_down(self) -> None:
        """Stop both directions: `receive` raises EOFError at both ends."""
        with suppress(OSError):  # the other end has done so already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut_down()
        self._socket.close()
        self.connection.close()


def open_channels(group: dist.ProcessGroup) -> list[ControlChannel]:
    """On rank 0 the channels to ranks 1, 2, ... in this order; on other ranks the one channel to rank 0. Collective."""
    hosts = _all_gather_text(group, socket.gethostname())
    if group.rank() == 0:
        return _accept_all(group, "127.0.0.1" if len(set(hosts)) == 1 else _own_address())
    address, port, token = json.loads(_all_gather_text(group, "")[0])
    sock = socket.create_connection((address, port), timeout=_OPEN_S)
    channel = ControlChannel(sock)
    channel.send([token, group.rank()])
    return [channel]


class ChannelSelector:
    """Waits on several channels at once. Threads: one calls `ready` and `drop`; any thread may read the length."""

    def __init__(self, channels: Iterable[ControlChannel]) -> None:
        self._channels, self._selector = set(channels), selectors.DefaultSelector()
        for channel in self._channels:
            self._selector.register(channel.connection, selectors.EVENT_READ, channel)

    def __len__(self) -> int:
        return len(self._channels)

    def ready(self) -> list[ControlChannel]:
        """Block until at least one channel is readable; return all that are."""
        return [key.data for key, _ in self._selector.select()]

    def drop(self, channel: ControlChannel) -> None:
        """Stop waiting on this channel."""
        self._channels.remove(channel)
        self._selector.unregister(channel.connection)

    def close(self) -> None:
        self._selector.close()


def _accept_all(group: dist.ProcessGroup, address: str) -> list[ControlChannel]:
    token = secrets.token_hex(_TOKEN_BYTES)
    channels: dict[int, ControlChannel] = {}
    with socket.create_server((address, 0)) as server:
        _all_gather_text(group, json.dumps([address, server.getsockname()[1], token]))
        deadline = time.monotonic() + _OPEN_S
        while len(channels) < group.size() - 1:
            server.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                sock, _ = server.accept()
            except TimeoutError as error:
                raise ChannelError(
                    f"{group.size() - 1 - len(channels)} ranks did not connect within {_OPEN_S:g} s"
                ) from error
            channel = ControlChannel(sock)
            if (rank := _peer_rank(channel, token)) is not None:
                channels[rank] = channel
            else:
                channel.close()
    return [channels[rank] for rank in range(1, group.size())]


def _peer_rank(channel: ControlChannel, token: str) -> int | None:
    """The rank of the process that has connected; None if it did not send the token."""
    try:
        given, rank = channel.receive() if channel.connection.poll(_TOKEN_S) else ("", 0)
    except (EOFError, TypeError, ValueError):
        return None
    return int(rank) if hmac.compare_digest(str(given).encode(), token.encode()) else None


def _own_address() -> str:
    """This host's address for other hosts: that of gloo's interface if one is set, else, as in gloo, of its name."""
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        for known in psutil.net_if_addrs().get(interface, []):
            if known.family == socket.AF_INET:
                return str(known.address)
    return socket.gethostbyname(socket.gethostname())


def _all_gather_text(group: dist.ProcessGroup, text: str) -> list[str]:
    """All-gather one short text per rank."""
    own = torch.zeros(_TEXT_BYTES, dtype=torch.uint8)
    data = text.encode()
    if len(data) > _TEXT_BYTES:
        raise ChannelError(f"{text!r} is longer than {_TEXT_BYTES} bytes")
    own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else 0
    gathered = [torch.empty_like(own) for _ in range(group.size())]
    group.allgather([gathered], [own], AllgatherOptions()).wait()
    return [bytes(one.tolist()).rstrip(b"\0").decode() for one in gathered]
