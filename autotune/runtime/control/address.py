"""At which of its addresses a host is reached by the other hosts of a job.

The name of a host may resolve to an address that only the host itself can use (127.0.1.1 on Debian). So the address is
that from which the route to rank 0's host leaves; it is found by connecting a UDP socket, which sends nothing.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence

import psutil

LOOPBACK = "127.0.0.1"
_ANY_PORT = 9
_FAR_AWAY = "192.0.2.1"
"""An address that no host has (RFC 5737): the route to it is the default route."""


def own_networks() -> list[str]:
    """The IPv4 addresses of this host with their networks ("10.0.0.5/24"); that of the default route comes first."""
    named = os.environ.get("GLOO_SOCKET_IFNAME")
    found: list[str] = []
    for interface, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            usable = one.family == socket.AF_INET and not ipaddress.ip_address(one.address).is_loopback
            if usable and (named is None or interface == named):
                found.append(f"{one.address}/{one.netmask or '255.255.255.255'}")
    first = route_address(_FAR_AWAY)
    return sorted(found, key=lambda text: text.partition("/")[0] != first)


def leader_address(networks: Sequence[Sequence[str]]) -> str | None:
    """Which address of rank 0's host the others use: one in a network that it shares with another host. All ranks compute it.

    `networks`: of each rank. An address that another host has as well (a bridge for containers) reaches no rank.
    """
    interfaces = [[ipaddress.IPv4Interface(text) for text in of_rank] for of_rank in networks]
    others = [one for of_rank in interfaces[1:] for one in of_rank if of_rank != interfaces[0]]
    own = [one for one in interfaces[0] if all(one.ip != other.ip for other in others)]
    for one in own:
        if any(one.network == other.network for other in others):
            return str(one.ip)
    return str(own[0].ip) if own else None


def route_address(target: str) -> str | None:
    """From which address packets to `target` leave."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((target, _ANY_PORT))
        except OSError:
            return None
        return str(sock.getsockname()[0])


def own_address(networks: Sequence[Sequence[str]], *, rank: int, one_machine: bool) -> str:
    """Where this rank listens for other ranks."""
    if one_machine:
        return LOOPBACK
    leader = leader_address(networks)
    named = os.environ.get("GLOO_SOCKET_IFNAME") is not None and networks[rank]
    if named:
        return networks[rank][0].partition("/")[0]
    found = leader if rank == 0 or leader is None else route_address(leader)
    return found or socket.gethostbyname(socket.gethostname())
