"""Modulo schedules without a solver: blocks placed one by one on the circle, for graphs on which the solver takes too long.

As in iterative modulo scheduling (Rau 1994), but without backtracking: a block takes the first free interval after its
dependencies, or the one within a period that touches most neighbours, which leaves larger gaps. Blocks on several
devices need the same interval on all of them, which is seldom free once others are placed: adjacent intervals are reserved
for them first (`kept_phases`), or not. Several orders and both rules are tried for each period, from the bound upwards.
A failure proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product

from autotune.schedule.grid import Grid
from autotune.schedule.modulo import Repetend, is_repetend

_GROWTH = 1.03


def greedy_repetend(grid: Grid, low: int, high: int) -> Repetend | None:
    """A repetend with a period above `low` and below `high`, as short as this finds."""
    period, kept = low + 1, kept_phases(grid)
    while period < high:
        for phases, order, snug in product(kept, _orders(grid), (False, True)):
            found = _place(grid, period, order, phases, snug=snug)
            if found is not None and is_repetend(grid, found):
                return found
        period = max(period + 1, math.floor(period * _GROWTH))
    return None


def kept_phases(grid: Grid) -> list[dict[int, int]]:
    """Reservations for blocks on several devices: adjacent, in the order of the graph or in reverse, or none."""
    shared = [block for block in grid.graph.topological if len(grid.graph.blocks[block].devices) > 1]
    reservations: list[dict[int, int]] = []
    for order in (shared, shared[::-1]) if shared else ():
        phases, phase = {}, 0
        for block in order:
            phases[block] = phase
            phase += grid.times[block]
        reservations.append(phases)
    return [*reservations, {}]


def _orders(grid: Grid) -> Iterator[list[int]]:
    """Level by level, and chain by chain."""
    graph = grid.graph
    yield list(graph.topological)
    placed: dict[int, None] = {}
    waiting = list(reversed(graph.topological))
    while waiting:
        block = waiting.pop()
        if block in placed or any(source not in placed for source, _ in graph.before[block]):
            continue
        placed[block] = None
        waiting += [other for other, before in enumerate(graph.before) if any(s == block for s, _ in before)]
    yield list(placed)


def _place(grid: Grid, period: int, order: list[int], phases: Mapping[int, int], *, snug: bool) -> Repetend | None:
    busy: list[list[tuple[int, int]]] = [
        [(phases[block], grid.times[block]) for block in blocks if block in phases] for blocks in grid.graph.on_device
    ]
    if sum(grid.times[block] for block in phases) > period:
        return None
    starts = [0] * len(order)
    for block in order:
        ready = max((starts[source] + lag for source, lag in grid.edges[block]), default=0)
        length = grid.times[block]
        if block in phases:
            starts[block] = ready + (phases[block] - ready) % period
            continue
        taken = [entry for device in grid.graph.blocks[block].devices for entry in busy[device]]
        free = [moment for moment in _moments(ready, length, period, taken) if _is_free(moment, length, period, taken)]
        if not free:
            return None
        best = min(free, key=lambda moment: (-_touches(moment, length, period, taken), moment)) if snug else min(free)
        starts[block] = best
        for device in grid.graph.blocks[block].devices:
            busy[device].append((best % period, length))
    return Repetend(period=period, starts=tuple(starts))


def _moments(ready: int, length: int, period: int, taken: list[tuple[int, int]]) -> set[int]:
    """Its earliest start, and the starts directly after or before another block, within a period."""
    places = {ready}
    for phase, other in taken:
        places.add(ready + (phase + other - ready) % period)
        places.add(ready + (phase - length - ready) % period)
    return places


def _is_free(moment: int, length: int, period: int, taken: list[tuple[int, int]]) -> bool:
    return all(
        (phase - moment) % period >= length and (moment - phase) % period >= other
        for phase, other in taken
        if length and other
    )


def _touches(moment: int, length: int, period: int, taken: list[tuple[int, int]]) -> int:
    """The number of sides on which another block is adjacent."""
    after = any((phase - moment - length) % period == 0 for phase, _ in taken)
    before = any((moment - phase - other) % period == 0 for phase, other in taken)
    return after + before
