"""Messages of the control plane as bytes: JSON, and `bytes` values behind it. Nothing is unpickled, so no rank runs another's code."""

from __future__ import annotations

import json
import struct
from typing import Any

_LENGTHS = struct.Struct("<II")
_PLACE = "\0bytes"
"""The one key of a table that stands for a `bytes` value."""


def encode(message: Any) -> bytes:
    """Of JSON-able values and bytes; tuples become lists, and numbers of arrays plain numbers."""
    blobs: list[bytes] = []
    text = json.dumps(_without_bytes(message, blobs), default=_plain, separators=(",", ":")).encode()
    lengths = struct.pack(f"<{len(blobs)}Q", *map(len, blobs))
    return b"".join([_LENGTHS.pack(len(text), len(blobs)), lengths, text, *blobs])


def decode(data: bytes) -> Any:
    num_text, num_blobs = _LENGTHS.unpack_from(data)
    start = _LENGTHS.size
    lengths = struct.unpack_from(f"<{num_blobs}Q", data, start)
    start += 8 * num_blobs
    text = data[start : start + num_text]
    start += num_text
    blobs = []
    for length in lengths:
        blobs.append(data[start : start + length])
        start += length
    return _with_bytes(json.loads(text), blobs) if blobs else json.loads(text)


def _without_bytes(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, bytes):
        blobs.append(value)
        return {_PLACE: len(blobs) - 1}
    if isinstance(value, dict):
        return {key: _without_bytes(item, blobs) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_bytes(item, blobs) for item in value]
    return value


def _with_bytes(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, dict):
        if _PLACE in value:
            return blobs[value[_PLACE]]
        return {key: _with_bytes(item, blobs) for key, item in value.items()}
    return [_with_bytes(item, blobs) for item in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):  # a number of numpy or torch
        return value.item()
    raise TypeError(f"a message to other ranks holds a {type(value).__name__}: send JSON-able values")
