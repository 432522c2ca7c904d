"""Sets of devices that a group of ops may be placed on: islands of like devices with counts, and their shares of the batch.

An *island* is the devices of one kind that are joined fastest: of an island or a host in the cluster file. A set takes some
devices of some islands. All subsets would be 65,535 sets of 16 devices; islands with counts (none, 1, 2, 4 …, all) are few, and
where they are too many, these: everything, every kind, rack, host and island, the fastest islands together, and parts of each.
The batch is shared in a set as its devices are fast, for all groups alike, so neighbouring groups of one set exchange nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from autotune.simulate.cost_tables import Costs, LikeRanks
from autotune.workloads.split import RankCost, balanced, bounds

MOST_SETS = 96


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSet:
    """Ranks, and their samples of a step."""

    ranks: tuple[int, ...]
    samples: tuple[int, ...]


def islands(costs: Costs) -> list[tuple[int, ...]]:
    """Ranks of each island of like devices."""
    topology, kinds = costs.cluster.topology, LikeRanks(costs).kind_of_rank
    found: dict[tuple[int, int, int], list[int]] = {}
    for rank, place in enumerate(topology.places):
        found.setdefault((place.host, place.island, kinds[rank]), []).append(rank)
    return [tuple(ranks) for ranks in found.values()]


def device_sets(costs: Costs, global_batch: int, micro_batches: int, most: int = MOST_SETS) -> tuple[DeviceSet, ...]:
    """At most so many sets, all devices first; every rank of a set has samples in each micro-batch."""
    lines = _lines(costs, global_batch / micro_batches)
    found: dict[tuple[int, ...], DeviceSet] = {}
    for ranks in _rank_sets(costs, lines, most):
        made = _shared_out(tuple(sorted(ranks)), lines, global_batch // micro_batches, micro_batches)
        found.setdefault(made.ranks, made)
        if len(found) == most:
            break
    return tuple(found.values())


def _lines(costs: Costs, samples: float) -> list[RankCost]:
    """Computing of each rank as a line through half of the samples and all."""
    size = len(costs.cluster.devices)
    half, whole = (sum(part.sum(axis=1) for part in costs.passes(np.full(size, samples * s))) for s in (0.5, 1.0))
    slopes = (whole - half) / (samples / 2)
    return [
        RankCost(fixed_s=float(max(end - slope * samples, 0.0)), per_sample_s=float(slope))
        for end, slope in zip(np.atleast_1d(whole), np.atleast_1d(slopes), strict=True)
    ]


def _shared_out(ranks: tuple[int, ...], lines: Sequence[RankCost], total: int, micro_batches: int) -> DeviceSet:
    """A balanced split of a micro-batch; ranks that are too slow for a sample are left out."""
    limits = bounds(len(ranks), total, minimum=0)
    split = balanced([lines[rank] for rank in ranks], total, limits)
    used = [(rank, count * micro_batches) for rank, count in zip(ranks, split, strict=True) if count]
    return DeviceSet(ranks=tuple(rank for rank, _ in used), samples=tuple(count for _, count in used))


def _rank_sets(costs: Costs, lines: Sequence[RankCost], most: int) -> Iterator[tuple[int, ...]]:
    """May repeat itself."""
    parts = islands(costs)
    yield tuple(range(len(lines)))
    counts = [[0, *_powers(len(ranks))] for ranks in parts]
    if prod(map(len, counts)) <= most:
        for chosen in product(*counts):
            if any(chosen):
                yield tuple(rank for ranks, count in zip(parts, chosen, strict=True) for rank in ranks[:count])
        for ranks in parts:
            yield from _blocks(ranks)
        return
    topology = costs.cluster.topology
    kinds = LikeRanks(costs).kind_of_rank
    for key in (lambda r: kinds[r], lambda r: topology.places[r].rack, lambda r: topology.places[r].host):
        yield from _classes(len(lines), [key(rank) for rank in range(len(lines))], most // 4)
    by_speed = sorted(parts, key=lambda ranks: (lines[ranks[0]].per_sample_s, -len(ranks), ranks))
    for number in dict.fromkeys([1, *_powers(len(by_speed)), *range(1, min(len(by_speed), most // 8))]):
        yield tuple(rank for ranks in by_speed[:number] for rank in ranks)
        yield tuple(ranks[0] for ranks in by_speed[:number])
    for ranks in by_speed:
        yield ranks
        yield ranks[:1]
    for ranks in by_speed:
        yield from _blocks(ranks)


def _classes(size: int, key_of_rank: Sequence[object], most: int) -> Iterator[tuple[int, ...]]:
    members: dict[object, list[int]] = {}
    for rank in range(size):
        members.setdefault(key_of_rank[rank], []).append(rank)
    if len(members) <= most:
        yield from map(tuple, members.values())


def _powers(size: int) -> list[int]:
    """1, 2, 4 … and the size."""
    return [*(2**power for power in range(size.bit_length()) if 2**power < size), size]


def _blocks(ranks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Halves of an island, quarters …, single devices."""
    for length in _powers(len(ranks))[:-1]:
        for start in range(0, len(ranks) - length + 1, length):
            yield tuple(ranks[start : start + length])
