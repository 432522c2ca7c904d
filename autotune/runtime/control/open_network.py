"""Opens the control network of a job: rank 0's secret and all addresses travel through the control plane, nothing else does.

Two exchanges through the control plane, then one connection per rank, from child to parent, each proved from both ends.
"""

from __future__ import annotations

import logging
import socket
import time
from contextlib import suppress
from typing import Any, Protocol

from autotune.runtime.control.address import own_address, own_networks
from autotune.runtime.control.handshake import new_secret, prove_to_parent
from autotune.runtime.control.listener import Listener
from autotune.runtime.control.network import Network
from autotune.runtime.control.tree import TreePlace, place_of

_LOG = logging.getLogger("autotune")
_OPEN_S = 60.0
_RETRY_S = 0.05


class OpenError(RuntimeError):
    """The control network could not be opened."""


class Bootstrap(Protocol):
    """What the control plane has before the network is open."""

    rank: int
    size: int

    def share(self, message: Any) -> list[Any]:
        """Every rank's message on every rank."""


def open_network(control: Bootstrap, *, timeout_s: float = _OPEN_S) -> Network:
    """Called by all ranks together."""
    if control.size == 1:
        return Network.alone()
    deadline = time.monotonic() + timeout_s
    place = place_of(control.rank, control.size)
    hosts = control.share([socket.gethostname(), own_networks()])
    one_machine = len({name for name, _ in hosts}) == 1
    networks = [found for _, found in hosts]
    listener = None
    if place.children:
        listener = Listener(own_address(networks, rank=control.rank, one_machine=one_machine))
    own = [*listener.address] if listener is not None else None
    shared = control.share([own, new_secret().hex() if control.rank == 0 else None])
    secret = bytes.fromhex(shared[0][1])
    connections = {}
    if place.parent is not None:
        connections[place.parent] = _connect(shared[place.parent][0], secret, place, deadline)
    num_rejected = 0
    if listener is not None:
        connections |= listener.accept(place.children, rank=control.rank, secret=secret, deadline=deadline)
        num_rejected = listener.num_rejected
    if num_rejected:
        _LOG.warning(
            "autotune: rank %d has dropped %d connections that do not know the secret of this job: something else connects to its "
            "ports",
            control.rank,
            num_rejected,
        )
    return Network(control.rank, control.size, connections, num_rejected=num_rejected)


def _connect(address: tuple[str, int], secret: bytes, place: TreePlace, deadline: float) -> socket.socket:
    """The connection to the parent. A connection that ends before both are proved is tried again: the parent drops some in a flood."""
    assert place.parent is not None
    last: Exception | None = None
    while time.monotonic() < deadline:
        sock = None
        try:
            sock = socket.create_connection((address[0], address[1]), timeout=max(deadline - time.monotonic(), 0.01))
            if prove_to_parent(sock, secret, child=place.rank, parent=place.parent, deadline=deadline):
                return sock
            last = OpenError("what listens there does not know the secret of this job")
        except OSError as error:
            last = error
        if sock is not None:
            with suppress(OSError):
                sock.close()
        time.sleep(_RETRY_S)
    raise OpenError(
        f"rank {place.rank} could not connect to rank {place.parent} at {address[0]}:{address[1]}: {last}: do firewalls let "
        "ranks of this job reach each other? GLOO_SOCKET_IFNAME names the network interface to use"
    )
