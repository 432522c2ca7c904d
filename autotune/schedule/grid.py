"""Times and memory as whole numbers, which is what CP-SAT reasons about, and what that costs in truth.

If all times are multiples of one number that is not too small, the grid is exact. Otherwise it is a small part of what one
micro-batch keeps the busiest device busy, and durations (with the link behind them) are rounded up, so that a schedule on the
grid is a schedule in truth. Rounding lengthens a path of k blocks by less than k units: bounds proven on the grid are
lowered by as much (`Grid.bound_s`).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction

from autotune.workloads.blocks import BlockGraph

FINE, COARSE = 2**16, 2**11
"""Steps of a grid that is not exact: for schedules, and for periods, whose models get hard with many."""
_MOST_STEPS = 2**20
_MEMORY_STEPS = 2**32


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A block graph in whole numbers."""

    graph: BlockGraph
    unit_s: float
    exact: bool
    times: tuple[int, ...]
    """Of each block."""
    edges: tuple[tuple[tuple[int, int], ...], ...]
    """Per block: those it waits for, and how long after their start it may start."""
    memory: tuple[int, ...]
    """Of each block."""
    limits: tuple[int | None, ...]
    """Of each device. None: it can never be reached, whatever the order."""

    def finer(self, factor: int) -> Grid:
        """The same with so many steps for each of its own."""
        return dataclasses.replace(
            self,
            unit_s=self.unit_s / factor,
            times=tuple(duration * factor for duration in self.times),
            edges=tuple(tuple((source, lag * factor) for source, lag in edges) for edges in self.edges),
        )

    def bound_s(self, units: int, num_roundings: int) -> float:
        """What a bound on the grid says of the truth, if at most so many durations lie on the path behind it."""
        return (units if self.exact else max(units - num_roundings, 0)) * self.unit_s


def make_grid(graph: BlockGraph, steps: int = FINE) -> Grid:
    """The finest grid that pays: exact if there is one."""
    unit = _exact_unit(graph)
    exact = unit is not None
    if unit is None:
        unit = Fraction(max(graph.work_s) / steps or 1.0)
    memory, limits = _whole_memory(graph)
    return Grid(
        graph=graph,
        unit_s=float(unit),
        exact=exact,
        times=tuple(_up(block.seconds, unit) for block in graph.blocks),
        edges=tuple(
            tuple((source, _up(graph.blocks[source].seconds + delay_s, unit)) for source, delay_s in before)
            for before in graph.before
        ),
        memory=memory,
        limits=limits,
    )


def _exact_unit(graph: BlockGraph) -> Fraction | None:
    """The greatest number that all times are multiples of, unless it is too small beside them."""
    times = {block.seconds for block in graph.blocks} | {delay for before in graph.before for _, delay in before}
    times.discard(0.0)
    if not times:
        return Fraction(1)
    numbers = [Fraction(repr(seconds)) for seconds in times]
    denominator = math.lcm(*(number.denominator for number in numbers))
    unit = Fraction(math.gcd(*(int(number * denominator) for number in numbers)), denominator)
    return unit if Fraction(max(*graph.work_s, *times)) / unit <= _MOST_STEPS else None


def _up(seconds: float, unit: Fraction) -> int:
    """Rounded up, but for the error of a float."""
    units = seconds / float(unit)
    nearest = round(units)
    return nearest if abs(units - nearest) <= 1e-9 * max(units, 1.0) else math.ceil(units)


def _whole_memory(graph: BlockGraph) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
    """Changes and limits in whole numbers: as they are if they are whole, else on a fine grid. There limits are raised by more than
    rounding can add up to: what is proven impossible is, and what rounding alone made possible does not pass the checker."""
    changes = [block.memory for block in graph.blocks]
    largest = max((abs(change) for change in changes), default=0.0)
    finite = [limit for limit in graph.memory if math.isfinite(limit)]
    whole = all(value == int(value) for value in (*changes, *finite)) and largest < _MEMORY_STEPS
    scale = 1.0 if whole or not largest else _MEMORY_STEPS / largest
    slack = 0 if whole else 64 * len(graph.blocks)
    limits = tuple(
        math.floor(limit * scale) + slack if math.isfinite(limit) and largest else None for limit in graph.memory
    )
    return tuple(round(change * scale) for change in changes), limits
