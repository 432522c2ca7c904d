"""Frames of the control network: a header of fixed size and a payload of bounded length. Nothing is unpickled.

A frame names its topic (a scope and a number within it), the rank that it came from and which way it travels. A message
that is longer than a frame is cut; all its frames but the last say that more follows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAX_FRAME_BYTES = 1 << 18
"""Of a payload."""
MAX_MESSAGE_BYTES = 1 << 28
"""Of a message that was cut into frames."""
HOP, TO_ROOT, TO_ALL = 1, 2, 3
"""Which way: to the parent, which handles it; to rank 0, relayed unread; from rank 0 to all ranks, relayed unread."""
FAREWELL, SCOPE_FAILED, GOODBYE, END = 4, 5, 6, 7
"""Of the network itself: a rank has ended; it has failed in a scope; a subtree has left; all ranks have left."""
BEAT = 8
"""Says only that the neighbour is there; it is not handed on to who reads frames."""
_MORE = 0x80
_HEADER = struct.Struct("<IIIIB")
HEADER_BYTES = _HEADER.size


class WireError(RuntimeError):
    """What was received is no frame of ours."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame as it was received."""

    kind: int
    scope: int
    number: int
    origin: int
    has_more: bool
    raw: bytes
    """All of it, to be relayed."""

    @property
    def payload(self) -> bytes:
        return self.raw[HEADER_BYTES:]


def pack(kind: int, scope: int, number: int, origin: int, payload: bytes) -> bytes:
    """A message, as one frame or several."""
    if len(payload) <= MAX_FRAME_BYTES:
        return _HEADER.pack(len(payload), scope, number, origin, kind) + payload
    if len(payload) > MAX_MESSAGE_BYTES:
        raise WireError(f"a control message has {len(payload)} bytes; the limit is {MAX_MESSAGE_BYTES}")
    frames = []
    for start in range(0, len(payload), MAX_FRAME_BYTES):
        piece = payload[start : start + MAX_FRAME_BYTES]
        more = _MORE if start + MAX_FRAME_BYTES < len(payload) else 0
        frames.append(_HEADER.pack(len(piece), scope, number, origin, kind | more) + piece)
    return b"".join(frames)


class FrameReader:
    """Cuts a stream of bytes into frames. One thread calls it."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with this data."""
        if self._rest:
            data = self._rest + data
        start, available = 0, len(data)
        while available - start >= HEADER_BYTES:
            length, scope, number, origin, kind = _HEADER.unpack_from(data, start)
            if length > MAX_FRAME_BYTES:
                raise WireError(f"a frame of {length} bytes; the limit is {MAX_FRAME_BYTES}")
            end = start + HEADER_BYTES + length
            if end > available:
                break
            if kind != BEAT:
                yield Frame(kind & ~_MORE, scope, number, origin, bool(kind & _MORE), data[start:end])
            start = end
        self._rest = data[start:]


class Joiner:
    """Joins the frames of messages that were cut. One thread calls it."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int, int, int], list[bytes]] = {}

    def message(self, frame: Frame) -> bytes | None:
        """The message that this frame completes, if it does."""
        key = (frame.kind, frame.scope, frame.number, frame.origin)
        if not frame.has_more and key not in self._parts:
            return frame.payload
        parts = self._parts.setdefault(key, [])
        parts.append(frame.payload)
        if sum(map(len, parts)) > MAX_MESSAGE_BYTES:
            raise WireError(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
        return None if frame.has_more else b"".join(self._parts.pop(key))
