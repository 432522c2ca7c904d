"""A connection to a neighbour in the tree of ranks: frames go out in the order of `put`, without a wait.

No thread holds a lock that others wait for while it sends: the first thread in `flush` sends what all have put. What the
socket does not take at once waits for the network's thread.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from autotune.runtime.control.wire import FrameReader

_READ_BYTES = 1 << 18
_IDLE_S, _INTERVAL_S, _PROBES = 10, 5, 3
"""A host that has lost its power or its network is found by TCP itself, within half a minute."""


class Edge:
    """One end of a connection.

    Threads: any thread may call `put` and `flush`; the network's thread alone reads, sends the rest and closes.
    """

    def __init__(self, sock: socket.socket, rank: int, wake: Callable[[], None]) -> None:
        """`rank`: of the other end. `wake`: called when the socket is full."""
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(sock)
        sock.setblocking(False)
        self.socket, self.rank, self._wake = sock, rank, wake
        self._out: deque[bytes] = deque()
        self._rest = b""
        self._sending = threading.Lock()
        self._reader = FrameReader()
        self.feed = self._reader.feed
        self.is_full = self.is_broken = False
        self.num_sent = self.num_sent_bytes = self.num_received_bytes = 0

    @property
    def has_output(self) -> bool:
        return bool(self._out or self._rest) and not self.is_broken

    def put(self, data: bytes) -> None:
        """Add frames to what is sent next."""
        self._out.append(data)

    def flush(self) -> None:
        """Send what has been put, unless another thread is doing so."""
        while self._out and not (self.is_full or self.is_broken):
            if not self._sending.acquire(blocking=False):
                return  # the thread that sends takes these too
            try:
                self._send()
            finally:
                self._sending.release()

    def resume(self) -> None:
        """The socket takes more again."""
        with self._sending:
            self.is_full = False
            self._send()

    def read(self) -> bytes:
        """What has arrived; empty once the other end is closed."""
        try:
            data = self.socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            raise
        except OSError:
            return b""
        self.num_received_bytes += len(data)
        return data

    def close(self) -> None:
        self.is_broken = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _send(self) -> None:
        while self._out or self._rest:
            data = self._rest or self._take()
            try:
                sent = self.socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:  # the other end is gone, which reading finds
                self.is_broken = True
                return
            self.num_sent += 1
            self.num_sent_bytes += sent
            self._rest = data[sent:] if sent < len(data) else b""
            if self._rest:
                self.is_full = True
                self._wake()
                return

    def _take(self) -> bytes:
        first = self._out.popleft()
        if not self._out:
            return first
        parts = [first]
        while self._out:
            parts.append(self._out.popleft())
        return b"".join(parts)


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _IDLE_S), ("TCP_KEEPINTVL", _INTERVAL_S), ("TCP_KEEPCNT", _PROBES)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
