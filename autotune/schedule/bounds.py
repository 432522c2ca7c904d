"""What no schedule can beat.

Period: what one micro-batch keeps the busiest device busy. Makespan: for each device, what must come before its first block,
all its work, and what must come after its last; and the longest way through one micro-batch. Where one block of a device takes
memory and another gives it back, at most c micro-batches are between the two: each must have come from the first to the end of
the second before the one c later may start. What else memory costs only search can prove.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from workloads.blocks import BlockGraph


@dataclass(frozen=True, kw_only=True, slots=True)
class _Hold:
    """A device on which one block takes what another gives back."""

    taker: int
    giver: int
    most: int
    """Micro-batches that can hold it at once."""
    seconds: float
    """From the start of the first to the end of the second, at least."""


def heads_s(graph: BlockGraph) -> list[float]:
    """Per block: the earliest moment at which it can start in an empty cluster."""
    heads = [0.0] * len(graph.blocks)
    for block in graph.topological:
        for source, delay_s in graph.before[block]:
            heads[block] = max(heads[block], heads[source] + graph.blocks[source].seconds + delay_s)
    return heads


def tails_s(graph: BlockGraph) -> list[float]:
    """Per block: what must still come after its end."""
    tails = [0.0] * len(graph.blocks)
    for block in reversed(graph.topological):
        for source, delay_s in graph.before[block]:
            tails[source] = max(tails[source], delay_s + graph.blocks[block].seconds + tails[block])
    return tails


def period_bound_s(graph: BlockGraph) -> float:
    return max(*graph.work_s, *(hold.seconds / hold.most for hold in _holds(graph)), 0.0)


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
    """From the start of a block to the start of one that waits for it, at least; None if it does not."""
    ways: dict[int, float] = {source: 0.0}
    for block in graph.topological:
        reached = [ways[s] + graph.blocks[s].seconds + delay for s, delay in graph.before[block] if s in ways]
        if reached and block != source:
            ways[block] = max(reached)
    return ways.get(target)


def makespan_bound_s(graph: BlockGraph, num_microbatches: int) -> float:
    """The longest of the ways described above."""
    heads, tails = heads_s(graph), tails_s(graph)
    alone = max(heads[index] + block.seconds + tails[index] for index, block in enumerate(graph.blocks))
    loaded = (
        min(heads[block] for block in blocks) + num_microbatches * work_s + min(tails[block] for block in blocks)
        for blocks, work_s in zip(graph.on_device, graph.work_s, strict=True)
        if blocks
    )
    held = (
        heads[hold.taker] + math.ceil(num_microbatches / hold.most) * hold.seconds + tails[hold.giver]
        for hold in _holds(graph)
    )
    return max(alone, *loaded, *held)
