"""Times and memory as integers, for CP-SAT, and the error that this causes.

If all times are multiples of one number that is not too small, the grid is exact. Otherwise a grid unit is a small fraction of
the work of one micro-batch on the busiest device, and durations (with the link after them) are rounded up, so a schedule on
the grid is valid for the real times. Rounding lengthens a path of k blocks by less than k grid units: bounds proven on the
grid are lowered by as much (`Grid.bound_s`).
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
    """A block graph in integers."""

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
        """The same grid, refined by a factor."""
        return dataclasses.replace(
            self,
            unit_s=self.unit_s / factor,
            times=tuple(duration * factor for duration in self.times),
            edges=tuple(tuple((source, lag * factor) for source, lag in edges) for edges in self.edges),
        )

    def bound_s(self, units: int, num_roundings: int) -> float:
        """A bound on the real times from a bound on the grid, with at most so many rounded durations on its path."""
        return (units if self.exact else max(units - num_roundings, 0)) * self.unit_s


def make_grid(graph: BlockGraph, steps: int = FINE) -> Grid:
    """The exact grid if there is one, else one of `steps` steps."""
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
    """Rounded up, with a tolerance for the error of floats."""
    units = seconds / float(unit)
    nearest = round(units)
    return nearest if abs(units - nearest) <= 1e-9 * max(units, 1.0) else math.ceil(units)


def _whole_memory(graph: BlockGraph) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
    """Changes and limits as integers: unchanged if they are integers, else on a fine grid with limits raised by more than the sum of
    all roundings. A proof of infeasibility then holds; a schedule that only rounding allows fails the check."""
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
