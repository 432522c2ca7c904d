"""Which gradients travel together. The runtime and the simulator both read this, so that a plan means one thing.

Sizes are given in the order in which gradients appear: the last parameter's first. A cut is a list of *starts*, the first
gradient of each group, found by bisection in the bytes *reached* before each gradient: a search cuts one model thousands
of times and adds its sizes up once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate, pairwise

from autotune.workloads.plan.comm import DDP_BUCKET_BYTES, MIB


def bytes_reached(sizes: Sequence[int]) -> list[int]:
    """Bytes before each gradient, and of all together."""
    return list(accumulate(sizes, initial=0))


def bucket_starts(bucket_bytes: int, reached: Sequence[int], start: int = 0, end: int | None = None) -> Iterator[int]:
    """Of our own reducer, for gradients from `start` to `end`: cut where a bucket would pass `bucket_bytes`."""
    end = len(reached) - 1 if end is None else end
    while start < end:
        yield start
        start = max(bisect_right(reached, reached[start] + bucket_bytes) - 1, start + 1)


def unit_starts(partition_bytes: int, reached: Sequence[int], start: int = 0, end: int | None = None) -> Iterator[int]:
    """Of reducer "scheduled": a unit is closed as soon as it has reached a partition."""
    end = len(reached) - 1 if end is None else end
    while start < end:
        yield start
        start = max(bisect_left(reached, reached[start] + partition_bytes), start + 1)


def ddp_starts(bucket_bytes: int, reached: Sequence[int]) -> Iterator[int]:
    """Of torch's reducer, once it has seen the order of gradients: a bucket is closed as soon as it has reached the cap; with
    the default cap the first one at 1 MiB already.
    """
    start = 0
    if bucket_bytes == DDP_BUCKET_BYTES and len(reached) > 1:
        yield start
        start = bisect_left(reached, MIB)
    yield from unit_starts(bucket_bytes, reached, start)


def bucket_indices(bucket_bytes: int, sizes: Sequence[int], kinds: Sequence[Hashable] | None = None) -> list[list[int]]:
    """The gradients of each bucket of our own reducer. `kinds`: dtype and device of each, which a bucket does not mix."""
    reached = bytes_reached(sizes)
    starts = [
        start for begin, end in _runs(kinds, len(sizes)) for start in bucket_starts(bucket_bytes, reached, begin, end)
    ]
    return _groups(starts, len(sizes))


def ddp_bucket_indices(bucket_bytes: int, sizes: Sequence[int]) -> list[list[int]]:
    """The same for torch's reducer."""
    return _groups(ddp_starts(bucket_bytes, bytes_reached(sizes)), len(sizes))


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
    none, reached = [None] * len(sizes), bytes_reached(sizes)
    layers = layers or none
    starts: list[int] = []
    for begin, end in _runs(list(zip(kinds or none, layers, strict=True)), len(sizes)):
        starts += [begin] if layers[begin] is not None else unit_starts(partition_bytes, reached, begin, end)
    return _groups(starts, len(sizes))


def num_partitions(partition_bytes: int, num_bytes: int, num_elements: int) -> int:
    """Into how many parts of equal size a unit is cut: each about a partition, none empty."""
    return max(1, min(round(num_bytes / partition_bytes), num_elements))


def _runs(kinds: Sequence[Hashable] | None, count: int) -> Iterator[tuple[int, int]]:
    """Where each run of one kind begins and ends."""
    changes = [i for i in range(1, count) if kinds[i] != kinds[i - 1]] if kinds is not None else []
    return pairwise([0, *changes, count] if count else [])


def _groups(starts: Sequence[int] | Iterator[int], count: int) -> list[list[int]]:
    return [list(range(start, stop)) for start, stop in pairwise([*starts, count])]
