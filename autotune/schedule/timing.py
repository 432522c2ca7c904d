"""From orders to times: every block of every micro-batch as early as the order of its devices allows.

For a given order no schedule is shorter, and memory does not depend on times: a search chooses orders only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from autotune.workloads.blocks import BlockGraph, Slot, Timetable

Number = TypeVar("Number", int, float)
Order = Sequence[Sequence[tuple[int, int]]]
"""Per device: block (its index in the graph) and micro-batch, in the order in which they run."""


def timetable(graph: BlockGraph, num_microbatches: int, order: Order) -> Timetable | None:
    """Every block as early as possible; None if the order has a dependency cycle."""
    starts = earliest_starts(graph, order)
    if starts is None:
        return None
    names = [block.name for block in graph.blocks]
    slots = tuple(
        tuple(
            Slot(block=names[block], microbatch=microbatch, start_s=starts[block, microbatch])
            for block, microbatch in one
        )
        for one in order
    )
    return Timetable(graph=graph, num_microbatches=num_microbatches, order=slots)


def earliest_starts(graph: BlockGraph, order: Order) -> dict[tuple[int, int], float] | None:
    """The earliest start of each, in seconds."""
    times = [block.seconds for block in graph.blocks]
    edges = [[(source, times[source] + delay_s) for source, delay_s in before] for before in graph.before]
    return earliest(graph, times, edges, order)


def earliest(
    graph: BlockGraph, times: Sequence[Number], edges: Sequence[Sequence[tuple[int, Number]]], order: Order
) -> dict[tuple[int, int], Number] | None:
    """The earliest start of each, in the unit of the times; an edge is the least time between two starts."""
    place = [0] * len(order)
    free: list[Any] = [0 * times[0]] * len(order)
    starts: dict[tuple[int, int], Any] = {}
    devices_of = [block.devices for block in graph.blocks]
    wakes: list[set[int]] = [set() for _ in graph.blocks]
    for block, before in enumerate(edges):
        for source, _ in before:
            wakes[source].update(devices_of[block])
    awake = [device for device, one in enumerate(order) if one]
    while awake:
        device = awake.pop()
        while place[device] < len(order[device]):
            step = order[device][place[device]]
            block, microbatch = step
            devices = devices_of[block]
            if any(place[other] >= len(order[other]) or order[other][place[other]] != step for other in devices):
                break
            if any((source, microbatch) not in starts for source, _ in edges[block]):
                break
            reached = [starts[source, microbatch] + lag for source, lag in edges[block]]
            starts[step] = max([free[other] for other in devices] + reached)
            for other in devices:
                place[other] += 1
                free[other] = starts[step] + times[block]
            awake.extend(other for other in wakes[block].union(devices) if other != device)
    return starts if all(at == len(one) for at, one in zip(place, order, strict=True)) else None


def order_by(
    graph: BlockGraph, num_microbatches: int, when: Callable[[int, int], float]
) -> list[list[tuple[int, int]]]:
    """Each device runs its blocks in the order of these times; ties in the order of the graph."""
    rank = {block: place for place, block in enumerate(graph.topological)}
    steps = [(block, microbatch) for block in range(len(graph.blocks)) for microbatch in range(num_microbatches)]
    keys = {step: (when(*step), step[1], rank[step[0]]) for step in steps}
    ordered = sorted(steps, key=keys.__getitem__)
    return [
        [step for step in ordered if device in graph.blocks[step[0]].devices] for device in range(graph.num_devices)
    ]


def order_of(table: Timetable) -> list[list[tuple[int, int]]]:
    """The order that a timetable has."""
    index = table.graph.index
    return [[(index[slot.block], slot.microbatch) for slot in slots] for slots in table.order]
