"""Memory of schedules: an order in which one micro-batch fits, and when it is safe to start another.

A schedule exists for any number of micro-batches if one fits: they can run one after another. Starting more than one may end
in a deadlock, where each holds memory that the next block of another needs. As in the banker's algorithm (Dijkstra 1965), a
block starts only if all micro-batches in flight can still be finished one by one, oldest first. Devices do not share
memory, so the check is per device.
"""

from __future__ import annotations

import math

from autotune.schedule.exact import one_microbatch
from autotune.workloads.blocks import BlockGraph
from autotune.workloads.errors import InfeasiblePlanError


def fitting_order(graph: BlockGraph, num_microbatches: int = 1) -> tuple[int, ...]:
    """All blocks in an order that one micro-batch can run in within the limits; InfeasiblePlanError if there is none."""
    order, stuck = _greedy(graph)
    if stuck is not None:
        solved = one_microbatch(graph)
        if solved is None:
            raise _too_small(graph, *stuck)
        order = solved
    _check_rest(graph, num_microbatches)
    return order


def within(held: float, limit: float) -> bool:
    """Whether it is within the limit, with a tolerance for sums of floats."""
    return held <= limit or held <= limit + 1e-9 * abs(limit)


class Bank:
    """The memory of the devices while a schedule is made, and whether a block may start."""

    def __init__(self, graph: BlockGraph, order: tuple[int, ...]) -> None:
        self._graph = graph
        self._order = [[block for block in order if d in graph.blocks[block].devices] for d in range(graph.num_devices)]
        self._bit = [{block: 1 << place for place, block in enumerate(one)} for one in self._order]
        self._held = [0.0] * graph.num_devices
        self._open: list[dict[int, int]] = [{} for _ in range(graph.num_devices)]
        self._rest: dict[tuple[int, int], tuple[float, float]] = {}

    def is_safe(self, block: int, microbatch: int) -> bool:
        """Whether all micro-batches in flight can still be finished after this start."""
        change = self._graph.blocks[block].memory
        return change <= 0 or all(self._is_safe(d, block, microbatch) for d in self._graph.blocks[block].devices)

    def start(self, block: int, microbatch: int) -> None:
        """Apply the memory change of the block."""
        for device in self._graph.blocks[block].devices:
            done = self._open[device].get(microbatch, 0) | self._bit[device][block]
            self._held[device] += self._graph.blocks[block].memory
            if done == (1 << len(self._order[device])) - 1:
                self._open[device].pop(microbatch, None)
            else:
                self._open[device][microbatch] = done

    def _is_safe(self, device: int, block: int, microbatch: int) -> bool:
        limit = self._graph.memory[device]
        if limit == math.inf:
            return True
        held = self._held[device] + self._graph.blocks[block].memory
        if not within(held, limit):
            return False
        begun = self._open[device]
        done = begun.get(microbatch, 0) | self._bit[device][block]
        for number in sorted({*begun, microbatch}):
            peak, net = self._remaining(device, done if number == microbatch else begun[number])
            if not within(held + peak, limit):
                return False
            held += net
        return True

    def _remaining(self, device: int, done: int) -> tuple[float, float]:
        """From this progress on: the most memory that a micro-batch adds until it is finished, and the net change."""
        if (found := self._rest.get((device, done))) is not None:
            return found
        level = peak = 0.0
        for block in self._order[device]:
            if not done & self._bit[device][block]:
                level += self._graph.blocks[block].memory
                peak = max(peak, level)
        self._rest[device, done] = peak, level
        return peak, level


def _greedy(graph: BlockGraph) -> tuple[tuple[int, ...], tuple[int, int, float] | None]:
    """Blocks that free memory as soon as possible, else the first that fits; and the block that did not fit, if any."""
    held = [0.0] * graph.num_devices
    waits = [len(before) for before in graph.before]
    order: list[int] = []
    while len(order) < len(graph.blocks):
        free = [block for block in graph.topological if waits[block] == 0]
        free.sort(key=lambda block: graph.blocks[block].memory > 0)
        fits = next((block for block in free if _misfit(graph, held, block) is None), None)
        if fits is None:
            device = _misfit(graph, held, free[0])
            assert device is not None
            return tuple(order), (free[0], device, held[device])
        waits[fits] = -1
        order.append(fits)
        for device in graph.blocks[fits].devices:
            held[device] += graph.blocks[fits].memory
        for block, before in enumerate(graph.before):
            waits[block] -= sum(source == fits for source, _ in before)
    return tuple(order), None


def _misfit(graph: BlockGraph, held: list[float], block: int) -> int | None:
    """The device on which a block does not fit."""
    change = graph.blocks[block].memory
    if change <= 0:
        return None
    for device in graph.blocks[block].devices:
        if not within(held[device] + change, graph.memory[device]):
            return device
    return None


def _too_small(graph: BlockGraph, block: int, device: int, held: float) -> InfeasiblePlanError:
    given = graph.blocks[block]
    beside = f" beside the {held:g} that its other blocks hold" if held else ""
    return InfeasiblePlanError(
        f"block {given.name!r} takes {given.memory:g} on device {device}{beside} but the limit is {graph.memory[device]:g}: "
        f"one micro-batch needs at least {held + given.memory:g} there; raise the limit or move blocks to another device"
    )


def _check_rest(graph: BlockGraph, num_microbatches: int) -> None:
    """Memory that is never freed accumulates over the micro-batches."""
    for device, limit in enumerate(graph.memory):
        blocks = [graph.blocks[index] for index in graph.on_device[device]]
        left = math.fsum(block.memory for block in blocks)
        if left > 0 and not within(left * num_microbatches, limit):
            largest = max(blocks, key=lambda block: block.memory)
            raise InfeasiblePlanError(
                f"each micro-batch leaves {left:g} on device {device} (block {largest.name!r} takes {largest.memory:g}), "
                f"{left * num_microbatches:g} after {num_microbatches}, but the limit is {limit:g}: "
                "let a block give it back, or run fewer micro-batches"
            )
