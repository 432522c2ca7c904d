"""Lower bounds on the period and the makespan of every schedule.

Period: the work of one micro-batch on the busiest device. Makespan: for each device, the least time before its first block, its
work, and the least time after its last block; and the longest path of one micro-batch. After the last run of a block, its
device is idle while that micro-batch is on other devices, if everything that the device still has to run needs one of
those devices as well; likewise before the first run (`_gaps_s`). Where one block of a device allocates memory and
another frees it, at most c micro-batches are between the two: a micro-batch must have ended the second block before the one
c later starts the first. Other costs of memory are left to the search.

Blocks that occupy all devices of such a path leave windows between them, the same in every period. Each block of the path lies
in one window, so a period covers at most as many blocks of the path as fit into its windows. With c micro-batches in
between, the period must be long enough for the resulting number of periods (`_windows_s`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.workloads.blocks import BlockGraph


@dataclass(frozen=True, kw_only=True, slots=True)
class _Hold:
    """A device on which one block allocates memory that another frees."""

    taker: int
    giver: int
    most: int
    """Micro-batches that can hold it at once."""
    seconds: float
    """From the start of the first to the end of the second, at least."""


def heads_s(graph: BlockGraph) -> list[float]:
    """Per block: its earliest start on idle devices."""
    heads = [0.0] * len(graph.blocks)
    for block in graph.topological:
        for source, delay_s in graph.before[block]:
            heads[block] = max(heads[block], heads[source] + graph.blocks[source].seconds + delay_s)
    return heads


def tails_s(graph: BlockGraph) -> list[float]:
    """Per block: the least time between its end and the end of its micro-batch."""
    tails = [0.0] * len(graph.blocks)
    for block in reversed(graph.topological):
        for source, delay_s in graph.before[block]:
            tails[source] = max(tails[source], delay_s + graph.blocks[block].seconds + tails[block])
    return tails


def period_bound_s(graph: BlockGraph) -> float:
    holds = list(_holds(graph))
    paths = (hold.seconds / hold.most for hold in holds)
    return max(*graph.work_s, *paths, *(_windows_s(graph, hold) for hold in holds), 0.0)


def _windows_s(graph: BlockGraph, hold: _Hold) -> float:
    """The shortest period in which the path from taker to giver, through the windows left by blocks on all its devices, spans
    no more periods than micro-batches can be on it.
    """
    path = [graph.blocks[block] for block in _longest_path(graph, hold.taker, hold.giver)]
    places = {device for block in path for device in block.devices}
    shared = [block for block in graph.blocks if places <= set(block.devices)]
    taken_s = math.fsum(block.seconds for block in shared)
    lengths = [block.seconds for block in path if block not in shared and block.seconds > 0]
    if not taken_s or len(lengths) < 2:
        return 0.0
    low_s, high_s = taken_s + max(lengths), taken_s + math.fsum(lengths)
    if _fits(low_s, taken_s, lengths, hold.most):
        return low_s
    while high_s - low_s > 1e-13 * high_s and low_s < (middle_s := (low_s + high_s) / 2) < high_s:
        low_s, high_s = (low_s, middle_s) if _fits(middle_s, taken_s, lengths, hold.most) else (middle_s, high_s)
    return low_s


def _fits(period_s: float, taken_s: float, lengths: Sequence[float], most: int) -> bool:
    """Whether the path can end after `most` periods. Its first block may end its window, its last may begin one."""
    free_s, used_s, periods = (period_s - taken_s) * (1 + 1e-12), 0.0, 0
    for length in lengths:
        used_s += length
        if used_s > free_s:
            used_s, periods = length, periods + 1
    return (periods - most) * period_s + lengths[0] + lengths[-1] - free_s <= 0


def _longest_path(graph: BlockGraph, source: int, target: int) -> list[int]:
    """The blocks of the longest path from one block to a successor."""
    paths: dict[int, tuple[float, list[int]]] = {source: (0.0, [source])}
    for block in graph.topological:
        reached = [
            (paths[before][0] + graph.blocks[before].seconds + delay_s, paths[before][1])
            for before, delay_s in graph.before[block]
            if before in paths
        ]
        if reached and block != source:
            seconds, path = max(reached)
            paths[block] = (seconds, [*path, block])
    return paths[target][1]


def _holds(graph: BlockGraph) -> Iterator[_Hold]:
    for device, limit in enumerate(graph.memory):
        changing = [block for block in graph.on_device[device] if graph.blocks[block].memory]
        if len(changing) != 2 or not math.isfinite(limit):
            continue
        taker, giver = sorted(changing, key=lambda block: -graph.blocks[block].memory)
        taken = graph.blocks[taker].memory
        way_s = _way_s(graph, taker, giver)
        if taken + graph.blocks[giver].memory == 0 and way_s is not None:
            most = max(math.floor(limit / taken * (1 + 1e-9)), 1)
            yield _Hold(taker=taker, giver=giver, most=most, seconds=way_s + graph.blocks[giver].seconds)


def _way_s(graph: BlockGraph, source: int, target: int) -> float | None:
    """The least time from the start of a block to the start of a successor; None if there is no path."""
    paths: dict[int, float] = {source: 0.0}
    for block in graph.topological:
        reached = [paths[s] + graph.blocks[s].seconds + delay for s, delay in graph.before[block] if s in paths]
        if reached and block != source:
            paths[block] = max(reached)
    return paths.get(target)


def makespan_bound_s(graph: BlockGraph, num_microbatches: int) -> float:
    """The largest of the bounds described above."""
    heads, tails = heads_s(graph), tails_s(graph)
    alone = max(heads[index] + block.seconds + tails[index] for index, block in enumerate(graph.blocks))
    loaded = (
        num_microbatches * work_s + _idle_s(graph, blocks, heads, tails)
        for blocks, work_s in zip(graph.on_device, graph.work_s, strict=True)
        if blocks
    )
    held = (
        heads[hold.taker] + math.ceil(num_microbatches / hold.most) * hold.seconds + tails[hold.giver]
        for hold in _holds(graph)
    )
    return max(alone, *loaded, *held)


def _idle_s(graph: BlockGraph, blocks: Sequence[int], heads: Sequence[float], tails: Sequence[float]) -> float:
    """The least idle time of a device before, between and after its `blocks`."""
    idle = [min(heads[block] for block in blocks) + min(tails[block] for block in blocks)]
    for block in blocks:
        others = [other for other in blocks if other != block]
        before_s, after_s = _gaps_s(graph, block, others)
        first = others if before_s else blocks
        last = others if after_s else blocks
        idle.append(min(heads[one] for one in first) + before_s + after_s + min(tails[one] for one in last))
    return max(idle)


def _gaps_s(graph: BlockGraph, block: int, others: Sequence[int]) -> tuple[float, float]:
    """The least idle time of a device before the first and after the last run of one of its blocks.

    Between that run and the next of the device's `others` for the same micro-batch lie blocks elsewhere. While one of them
    runs that shares a device with each of the others, the device can run none of its own.
    """
    counted = [
        one.seconds if all(not set(one.devices).isdisjoint(graph.blocks[other].devices) for other in others) else 0.0
        for one in graph.blocks
    ]
    sources = [[source for source, _ in before] for before in graph.before]
    targets: list[list[int]] = [[] for _ in graph.blocks]
    for one, listed in enumerate(sources):
        for source in listed:
            targets[source].append(one)

    def longest_s(order: Sequence[int], nearer: Sequence[Sequence[int]]) -> float:
        """The shortest path to any of the others that passes through none of them."""
        found = {block: 0.0}
        for one in order:
            reached = [found[near] for near in nearer[one] if near in found and near not in others]
            if reached:
                found[one] = max(reached) + (0.0 if one in others else counted[one])
        return max((found[other] for other in others if other in found), default=0.0)

    return longest_s(graph.topological[::-1], targets), longest_s(graph.topological, sources)
