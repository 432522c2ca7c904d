"""How fast every host's link is right now: a few messages between the ranks that stand for their hosts.

Collectives last as long on one rank as on another, so they do not tell which link is slow. In round k every host sends to
the k-th after it, and each link carries one message each way. A message comes in parts whose arrivals are timed: the slope of
bytes over time does not mind when they were sent, and what a token bucket had saved up goes with the first part. A receiver
that was busy elsewhere finds parts that have been there for a while, whose arrival nobody saw: only those count that it had
to wait for. A message is as fast as the slower of its two links, so a link is taken to be as fast as the fastest message
that it carried (`autotune.online.link_state`).
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
"""Above those of codecs and factors, below those of shards."""
_SEEN_S = 1e-4
"""Who waits for less has not waited."""


def stand_ins(host_of_rank: Sequence[int]) -> tuple[int, ...]:
    """The first rank of each host."""
    return tuple(host_of_rank.index(host) for host in sorted(set(host_of_rank)))


def arrivals(group: dist.ProcessGroup, firsts: Sequence[int]) -> tuple[float, ...]:
    """Bytes per second at which this rank has received, a number for each round; nothing for a rank that stands for no host.

    Called by all ranks together, with nothing else under way.
    """
    rank, size = group.rank(), len(firsts)
    if rank not in firsts:
        return ()
    place = firsts.index(rank)
    return tuple(
        _round(group, firsts[(place + number) % size], firsts[(place - number) % size], _TAG + number)
        for number in range(1, num_rounds(size) + 1)
    )


def num_rounds(num_hosts: int) -> int:
    return min(num_hosts - 1, MOST_ROUNDS)


def look_bytes(num_hosts: int) -> int:
    """What a look puts on each link, one way."""
    return num_rounds(num_hosts) * (LEAD_BYTES + NUM_PARTS * PART_BYTES)


def _round(group: dist.ProcessGroup, target: int, source: int, tag: int) -> float:
    sizes = [LEAD_BYTES, *[PART_BYTES] * NUM_PARTS]
    buffers = [torch.empty(size // _ELEMENT_BYTES) for size in sizes]
    receiving = [group.recv([buffer], source, tag) for buffer in buffers]  # before any send: see shard_group
    sending = [group.send([torch.zeros(size // _ELEMENT_BYTES)], target, tag) for size in sizes]
    moments = [time.perf_counter()]
    for work in receiving:
        work.wait()
        moments.append(time.perf_counter())
    for work in sending:
        work.wait()
    return speed_of(moments)


def speed_of(moments: Sequence[float]) -> float:
    """Bytes per second, from when the receiver began to wait and when it had each part."""
    waited = [now - before > _SEEN_S for before, now in pairwise(moments)]
    # Where the next part was there already, this one was seen too late as well.
    seen = [
        (place, moments[place + 1]) for place, (one, after) in enumerate(pairwise([*waited, True])) if one and after
    ]
    slopes = [(late_s - early_s) / (late - early) for (early, early_s), (late, late_s) in combinations(seen, 2)]
    if not slopes:  # too fast to be seen: at least as fast as this
        return (LEAD_BYTES + NUM_PARTS * PART_BYTES) / max(moments[-1] - moments[0], _SEEN_S)
    return PART_BYTES / median(slopes)
