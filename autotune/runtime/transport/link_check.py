"""Link probe: the present speed of every host's link, from a few messages between the hosts' representatives.

A collective lasts equally long on all ranks and does not show which link is slow. In round k every host sends to the k-th
host after it, so each link carries one message per direction. A message consists of parts whose arrivals are timed. The
slope of bytes over time does not depend on when the parts were sent, and the lead part uses up what a token bucket has
saved. A receiver that was busy finds parts that arrived earlier, at an unknown time: only parts that it waited for count.
A message is as fast as the slower of its two links, so a link is taken to be as fast as the fastest message that it
carried (`autotune.online.link_state`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import median

import torch
import torch.distributed as dist

MOST_ROUNDS = 3
LEAD_BYTES, PART_BYTES, NUM_PARTS = 192 << 10, 1 << 16, 8
_ELEMENT_BYTES = 4
_TAG = 1 << 18
"""Above the tags of codecs and sufficient factors, below those of owner shards."""
_SEEN_S = 1e-4
"""A shorter wait does not count as a wait."""


def host_representatives(host_of_rank: Sequence[int]) -> tuple[int, ...]:
    """The first rank of each host."""
    return tuple(host_of_rank.index(host) for host in sorted(set(host_of_rank)))


def probe_links(group: dist.ProcessGroup, representatives: Sequence[int]) -> tuple[float, ...]:
    """Bytes per second that this rank received, one value per round; empty on a rank that represents no host.

    Called by all ranks together, with nothing else in flight.
    """
    rank, size = group.rank(), len(representatives)
    if rank not in representatives:
        return ()
    place = representatives.index(rank)
    return tuple(
        _round(group, representatives[(place + number) % size], representatives[(place - number) % size], _TAG + number)
        for number in range(1, num_rounds(size) + 1)
    )


def num_rounds(num_hosts: int) -> int:
    return min(num_hosts - 1, MOST_ROUNDS)


def probe_bytes(num_hosts: int) -> int:
    """Bytes that a link probe puts on each link, per direction."""
    return num_rounds(num_hosts) * (LEAD_BYTES + NUM_PARTS * PART_BYTES)


def _round(group: dist.ProcessGroup, target: int, source: int, tag: int) -> float:
    sizes = [LEAD_BYTES, *[PART_BYTES] * NUM_PARTS]
    buffers = [torch.empty(size // _ELEMENT_BYTES) for size in sizes]
    receiving = [group.recv([buffer], source, tag) for buffer in buffers]  # before any send: see shard_group
    sending = [group.send([torch.zeros(size // _ELEMENT_BYTES)], target, tag) for size in sizes]
    times_s = [time.perf_counter()]
    for work in receiving:
        work.wait()
        times_s.append(time.perf_counter())
    for work in sending:
        work.wait()
    return speed_of(times_s)


def speed_of(times_s: Sequence[float]) -> float:
    """Bytes per second, from the time stamps of the beginning of the wait and of each part's completion."""
    waited = [now_s - before_s > _SEEN_S for before_s, now_s in pairwise(times_s)]
    # If the next part had arrived already, the time stamp of this one is too late as well.
    seen = [
        (place, times_s[place + 1]) for place, (one, after) in enumerate(pairwise([*waited, True])) if one and after
    ]
    slopes = [(late_s - early_s) / (late - early) for (early, early_s), (late, late_s) in combinations(seen, 2)]
    if not slopes:  # too fast to be timed: at least as fast as this
        return (LEAD_BYTES + NUM_PARTS * PART_BYTES) / max(times_s[-1] - times_s[0], _SEEN_S)
    return PART_BYTES / median(slopes)
