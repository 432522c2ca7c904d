"""What no schedule can beat.

Period: what one micro-batch keeps the busiest device busy. Makespan: for each device, what must come before its first block,
all its work, and what must come after its last; and the longest way through one micro-batch. Memory may raise both, which only
search can prove.
"""

from __future__ import annotations

from workloads.blocks import BlockGraph


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
    return max(graph.work_s)


def makespan_bound_s(graph: BlockGraph, num_microbatches: int) -> float:
    """The longest of the ways described above."""
    heads, tails = heads_s(graph), tails_s(graph)
    alone = max(heads[index] + block.seconds + tails[index] for index, block in enumerate(graph.blocks))
    loaded = (
        min(heads[block] for block in blocks) + num_microbatches * work_s + min(tails[block] for block in blocks)
        for blocks, work_s in zip(graph.on_device, graph.work_s, strict=True)
        if blocks
    )
    return max(alone, *loaded)
