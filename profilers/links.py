"""Transfers as numbers: latency and bandwidth from timed messages, nccl-tests' two bandwidths, and links from pairs.

A message of n bytes takes latency + n / bandwidth (Hockney's model), fitted in `autotune.profilers.fit`. `algbw` and `busbw` are
those of nccl-tests (its doc/PERFORMANCE.md): algbw is size over time; busbw multiplies it by the bytes that a rank must
send per byte of the collective, so that it is comparable to the bandwidth of a link for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER = "all-reduce", "broadcast", "all-gather", "reduce-scatter"
SEND = "send"
_SAME = 0.9
"""The least ratio by which the other side of a pair must be faster, so that this side counts as its bottleneck."""


def bus_factor(kind: str, num_ranks: int) -> float:
    """Bytes a rank must send per byte of the collective; size is the whole array, also for all-gather."""
    share = (num_ranks - 1) / num_ranks
    return {ALL_REDUCE: 2 * share, ALL_GATHER: share, REDUCE_SCATTER: share, BROADCAST: 1.0, SEND: 1.0}[kind]


def algbw(num_bytes: float, seconds: float) -> float:
    """Bytes per second of the collective for its caller; 0 where no time was measured."""
    return num_bytes / seconds if seconds > 0 else 0.0


def busbw(kind: str, num_ranks: int, num_bytes: float, seconds: float) -> float:
    """Bytes per second on the links."""
    return algbw(num_bytes, seconds) * bus_factor(kind, num_ranks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One direction of a host's link, estimated from its pairs."""

    bytes_per_s: float
    is_limit: bool
    """The other side of some pair carries more, so this side is the bottleneck. Otherwise this is a lower bound."""


def uplink(host: str, pairs: Mapping[tuple[str, str], float]) -> Side | None:
    """The uplink of a host: the fastest pair from it. `pairs` holds bytes per second of (from, to)."""
    return _side({to: speed for (sender, to), speed in pairs.items() if sender == host}, pairs, others_end=1)


def downlink(host: str, pairs: Mapping[tuple[str, str], float]) -> Side | None:
    """The downlink of a host: the fastest pair to it."""
    return _side({sender: speed for (sender, to), speed in pairs.items() if to == host}, pairs, others_end=0)


def _side(own: dict[str, float], pairs: Mapping[tuple[str, str], float], *, others_end: int) -> Side | None:
    """`own`: speed with each other host; a pair is min(uplink, downlink), so the fastest of them is at most this side."""
    if not own:
        return None
    fastest = max(own.values())

    def can_take(other: str) -> float:
        return max(speed for pair, speed in pairs.items() if pair[others_end] == other)

    return Side(bytes_per_s=fastest, is_limit=any(fastest < _SAME * can_take(other) for other in own))
