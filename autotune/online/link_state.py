"""Changed links, from the receive speeds of a link probe.

A message is as fast as the slower of its two links, so a link is at least as fast as the fastest message over it. The two
are equal if any partner's link is as fast. Input: per host and round k, the speed at which the host received from the
k-th host before it. Output: a cluster with these links, and a description of the links that changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean

from autotune.workloads.cluster import Cluster, Host, Link

CHANGED = 1.3
"""Ratio of bandwidths from which a link counts as changed; less may be the error of a short link probe."""
ALIKE = 1.25
"""Ratio of bandwidths up to which links count as equal."""
_MOST_NAMED = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Bandwidths of a host's link, as a link probe measured them."""

    up_bytes_per_s: float
    down_bytes_per_s: float

    @property
    def both_bytes_per_s(self) -> float:
        return min(self.up_bytes_per_s, self.down_bytes_per_s)


def links_of(arrivals: Sequence[Sequence[float]]) -> tuple[Speed, ...]:
    """The links of hosts, from the receive speed of each host in each round."""
    size, rounds = len(arrivals), range(len(arrivals[0]))
    ups = [max(arrivals[(host + number + 1) % size][number] for number in rounds) for host in range(size)]
    downs = [max(received) for received in arrivals]
    found = steadied([*ups, *downs])
    return tuple(
        Speed(up_bytes_per_s=up, down_bytes_per_s=down) for up, down in zip(found[:size], found[size:], strict=True)
    )


def steadied(values: Sequence[float]) -> list[float]:
    """Replace values that differ by no more than the error of a short link probe by their mean."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    groups: list[list[int]] = []
    for place in order:
        if groups and values[place] <= ALIKE * values[groups[-1][0]]:
            groups[-1].append(place)
        else:
            groups.append([place])
    found = list(values)
    for group in groups:
        for place in group:
            found[place] = fmean(values[other] for other in group)
    return found


def with_links(cluster: Cluster, speeds: Sequence[Speed]) -> Cluster:
    """The cluster with measured bandwidths, limited to the stated ones; latencies stay."""
    return replace(
        cluster, hosts=tuple(_with_link(host, speed) for host, speed in zip(cluster.hosts, speeds, strict=True))
    )


def _with_link(host: Host, speed: Speed) -> Host:
    stated = host.link or Link(up_bytes_per_s=inf, down_bytes_per_s=inf)
    link = Link(
        up_bytes_per_s=min(speed.up_bytes_per_s, stated.up_bytes_per_s),
        down_bytes_per_s=min(speed.down_bytes_per_s, stated.down_bytes_per_s),
        latency_s=stated.latency_s,
    )
    return replace(host, link=link)


def changed_hosts(before: Cluster, now: Cluster) -> dict[int, float]:
    """Hosts whose links changed, and the ratio of their bandwidths."""
    ratios = {}
    for index, (old, new) in enumerate(zip(before.hosts, now.hosts, strict=True)):
        if old.link is None or new.link is None:
            continue
        ups, downs = (
            getattr(new.link, name) / getattr(old.link, name) for name in ("up_bytes_per_s", "down_bytes_per_s")
        )
        ratio = min(ups, downs, key=lambda value: min(value, 1 / value))
        if not 1 / CHANGED < ratio < CHANGED:
            ratios[index] = ratio
    return ratios


def in_words(cluster: Cluster, ratios: dict[int, float]) -> str:
    """Which links changed, as a clause for the log."""
    if not ratios:
        return "no link carries less than before"
    if len(ratios) == len(cluster.hosts):
        return f"all links carry {fmean(ratios.values()):.2g} times what they did"
    named = [f"{cluster.hosts[host].name}'s link carries {ratio:.2g}" for host, ratio in ratios.items()]
    more = f", and {len(named) - _MOST_NAMED} more changed" if len(named) > _MOST_NAMED else ""
    return ", ".join(named[:_MOST_NAMED]) + " times what it did" + more


def ranks_on(cluster: Cluster, hosts: Sequence[int]) -> tuple[int, ...]:
    return tuple(rank for rank, host in enumerate(cluster.host_of_rank) if host in hosts)
