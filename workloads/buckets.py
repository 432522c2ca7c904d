"""Which gradients travel together. The runtime and the simulator both read this, so that a plan means one thing.

Sizes are given in the order in which gradients appear: the last parameter's first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate

from workloads.plan import DDP_BUCKET_BYTES, MIB, CommPlan


def bucket_indices(bucket_bytes: int, sizes: Sequence[int], kinds: Sequence[Hashable] | None = None) -> list[list[int]]:
    """The gradients of each bucket of our own reducer: cut where a bucket would pass `bucket_bytes`.

    `kinds`: dtype and device of each gradient, which a bucket does not mix.
    """
    reached = list(accumulate(sizes, initial=0))
    buckets, start = [], 0
    for end in _ends_of_runs(kinds, len(sizes)):
        while start < end:
            fits = bisect_right(reached, reached[start] + bucket_bytes) - 1
            stop = min(max(fits, start + 1), end)
            buckets.append(list(range(start, stop)))
            start = stop
    return buckets


def _ends_of_runs(kinds: Sequence[Hashable] | None, count: int) -> list[int]:
    """Where the kind changes, and the end."""
    return [i for i in range(1, count) if kinds[i] != kinds[i - 1]] + [count] if kinds is not None else [count]


def ddp_bucket_indices(bucket_bytes: int, sizes: Sequence[int]) -> list[list[int]]:
    """The same for torch's reducer, once it has seen the order of gradients: a bucket is closed as soon as it has reached
    the cap; with the default cap the first one at 1 MiB already.
    """
    limits = [MIB, bucket_bytes] if bucket_bytes == DDP_BUCKET_BYTES else [bucket_bytes]
    buckets: list[list[int]] = []
    filled = 0
    for index, size in enumerate(sizes):
        if not buckets or filled >= limits[min(len(buckets), len(limits)) - 1]:
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += size
    return buckets


def partitions(comm: CommPlan, sizes: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    """What reducer "scheduled" sends, as (gradients it is of, bytes): small neighbours are fused up to a partition, what
    is larger is cut into partitions of equal size.
    """
    fused: list[int] = []
    filled = 0
    for index, size in enumerate(sizes):
        if fused and filled + size > comm.partition_bytes:
            yield from _cut(fused, filled, comm.partition_bytes)
            fused, filled = [], 0
        fused.append(index)
        filled += size
    if fused:
        yield from _cut(fused, filled, comm.partition_bytes)


def _cut(gradients: list[int], num_bytes: int, partition_bytes: int) -> Iterator[tuple[list[int], int]]:
    count = max(1, -(-num_bytes // partition_bytes))
    for part in range(count):
        yield gradients, num_bytes * (part + 1) // count - num_bytes * part // count
