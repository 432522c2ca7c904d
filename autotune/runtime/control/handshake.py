"""Parent and child prove to each other that they know the job's secret, by HMAC over fresh nonces (challenge and response).

    parent -> child    nonce of the parent
    child  -> parent   its rank, its nonce, HMAC("child", nonces, ranks)
    parent -> child    HMAC("parent", nonces, ranks)

A recorded handshake is worthless: the parent's nonce is new each time. Every step has a fixed size, so nothing that a
stranger sends makes a rank allocate or parse anything. The secret itself never travels over these connections.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time

NONCE_BYTES, SECRET_BYTES, MAC_BYTES = 16, 32, 32
_RANKS = struct.Struct("<II")
_RANK = struct.Struct("<I")
ANSWER_BYTES = _RANK.size + NONCE_BYTES + MAC_BYTES
"""What a child answers."""


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def answer_of(secret: bytes, nonce: bytes, own_nonce: bytes, *, child: int, parent: int) -> bytes:
    """What the child sends for the parent's nonce."""
    return _RANK.pack(child) + own_nonce + _mac(secret, b"child", nonce, own_nonce, child, parent)


def check_answer(secret: bytes, nonce: bytes, answer: bytes, *, parent: int) -> tuple[int, bytes] | None:
    """The rank of a child that knows the secret, and what the parent proves itself with; None for any other process."""
    (child,) = _RANK.unpack_from(answer)
    own_nonce, mac = answer[_RANK.size : -MAC_BYTES], answer[-MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(secret, b"child", nonce, own_nonce, child, parent)):
        return None
    return child, _mac(secret, b"parent", nonce, own_nonce, child, parent)


def prove_to_parent(sock: socket.socket, secret: bytes, *, child: int, parent: int, deadline: float) -> bool:
    """The child's side; whether the other end is the parent. Raises OSError if the connection ends or stalls."""
    nonce = _receive(sock, NONCE_BYTES, deadline)
    own_nonce = new_nonce()
    sock.sendall(answer_of(secret, nonce, own_nonce, child=child, parent=parent))
    proof = _receive(sock, MAC_BYTES, deadline)
    return hmac.compare_digest(proof, _mac(secret, b"parent", nonce, own_nonce, child, parent))


def _mac(secret: bytes, label: bytes, nonce: bytes, own_nonce: bytes, child: int, parent: int) -> bytes:  # noqa: PLR0913, PLR0917 - what is signed
    return hmac.digest(secret, label + nonce + own_nonce + _RANKS.pack(child, parent), hashlib.sha256)


def _receive(sock: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        more = sock.recv(count - len(data))
        if not more:
            raise ConnectionError("the other end has closed the connection")
        data += more
    return data
