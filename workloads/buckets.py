"""Which gradients travel together. The runtime and the simulator both read this, so that a plan means one thing.

Sizes are given in the order in which gradients appear: the last parameter's first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from itertools import accumulate

from workloads.plan import DDP_BUCKET_BYTES, MIB


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
    if count == 0:
        return []
    return [i for i in range(1, count) if kinds[i] != kinds[i - 1]] + [count] if kinds is not None else [count]


def ddp_bucket_indices(bucket_bytes: int, sizes: Sequence[int]) -> list[list[int]]:
    """The same for torch's reducer, once it has seen the order of gradients: a bucket is closed as soon as it has reached
    the cap; with the default cap the first one at 1 MiB already.
    """
    limits = [MIB, bucket_bytes] if bucket_bytes == DDP_BUCKET_BYTES else [bucket_bytes]
    return _closed_when_reached(limits, sizes)


def _closed_when_reached(limits: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Neighbours together until they reach the limit; the last limit holds for all further ones."""
    groups: list[list[int]] = []
    filled = 0
    for index, size in enumerate(sizes):
        if not groups or filled >= limits[min(len(groups), len(limits)) - 1]:
            groups.append([])
            filled = 0
        groups[-1].append(index)
        filled += size
    return groups


def unit_indices(
    partition_bytes: int,
    sizes: Sequence[int],
    *,
    kinds: Sequence[Hashable] | None = None,
    layers: Sequence[Hashable | None] | None = None,
) -> list[list[int]]:
    """The gradients of each unit of reducer "scheduled": neighbours are fused until they reach a partition, and what is
    larger is cut. `layers`: gradients of one such layer make a unit of their own, None where there is none.
    """
    none = [None] * len(sizes)
    runs = list(zip(kinds or none, layers or none, strict=True))
    units: list[list[int]] = []
    start = 0
    for end in _ends_of_runs(runs, len(sizes)):
        if runs[start][1] is not None:
            units.append(list(range(start, end)))
        else:
            fused = _closed_when_reached([partition_bytes], sizes[start:end])
            units += [[start + index for index in unit] for unit in fused]
        start = end
    return units


def num_partitions(partition_bytes: int, num_bytes: int, num_elements: int) -> int:
    """Into how many parts of equal size a unit is cut: each about a partition, none empty."""
    return max(1, min(round(num_bytes / partition_bytes), num_elements))
