"""Shortens a finite schedule piece by piece.

Large neighbourhood search (Shaw 1998): CP-SAT reorders the blocks within a span of time, the rest keeps its order. Warm-up and
cool-down come first, since a schedule of many micro-batches is idle mostly there; then spans in between, of growing size.
A schedule that is small enough is one piece, and the answer is the optimum.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from autotune.schedule.check import replay
from autotune.schedule.exact import Piece, Step, solve_piece
from autotune.schedule.grid import Grid
from autotune.schedule.solver import Outcome
from autotune.schedule.timing import earliest, order_by, order_of, timetable
from autotune.workloads.blocks import Timetable

_PIECE = 60
"""Steps of a piece that CP-SAT still solves in a second or so."""
_PIECE_S = 2.0
_FRUITLESS = 3
"""Consecutive rounds without a change after which the search ends."""
_SMALL = 100
"""The most steps of a schedule that is solved as a whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Improved:
    """The schedule, and a lower bound if one was proven here."""

    table: Timetable
    bound_s: float


def improve(
    table: Timetable,
    grid: Grid,
    bound_s: float,
    left_s: Callable[[], float],
    seed: int = 0,
) -> Improved:
    """Shorten it until it reaches the bound, the time is over, or rounds of pieces change nothing."""
    best = table
    if is_small(table):
        solved = _whole(best, grid, left_s())
        best, bound_s = solved.table, max(bound_s, solved.bound_s)
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    fruitless = 0
    while best.makespan_s > bound_s * (1 + 1e-9) and left_s() > 0 and fruitless < _FRUITLESS:
        before_s = best.makespan_s
        for low, high in _spans(best, draw, anywhere=4 + 8 * fruitless):
            if left_s() <= 0:
                break
            found = _shorter(best, grid, low, high, min(left_s(), _PIECE_S))
            if found is not None and found.makespan_s < best.makespan_s:
                best = found
        fruitless = fruitless + 1 if best.makespan_s >= before_s * (1 - 1e-9) else 0
    return Improved(table=best, bound_s=bound_s)


def is_small(table: Timetable) -> bool:
    """Whether it is small enough to be solved as a whole."""
    return len(table.graph.blocks) * table.num_microbatches <= _SMALL


def _spans(table: Timetable, draw: random.Random, anywhere: int) -> Iterator[tuple[float, float]]:
    """Spans of time with about `_PIECE` steps, from both ends inwards, then anywhere."""
    moments = sorted(slot.start_s for slot in table.slots())
    if len(moments) <= _PIECE:
        yield 0.0, moments[-1]
        return
    for size in (_PIECE, min(2 * _PIECE, len(moments))):
        for shift in (0, size // 2, size):
            if shift + size <= len(moments):
                yield moments[shift], moments[shift + size - 1]
                yield moments[-size - shift], moments[-1 - shift]
    for _ in range(anywhere):
        first = draw.randrange(max(len(moments) - _PIECE, 1))
        yield moments[first], moments[min(first + _PIECE, len(moments) - 1)]


def _whole(table: Timetable, grid: Grid, time_s: float) -> Improved:
    """The optimum, if the time is enough to find and prove it."""
    graph = table.graph
    starts = _grid_starts(grid, order_of(table))
    steps = sorted(starts)
    horizon = max(starts[step] + grid.times[step[0]] for step in steps)
    found = solve_piece(grid, Piece(steps=steps, hint=starts, horizon=horizon), time_s)
    if found.outcome is Outcome.UNKNOWN or not found.starts:
        return Improved(table=table, bound_s=0.0)
    order = order_by(graph, table.num_microbatches, lambda block, microbatch: found.starts[block, microbatch])
    other = timetable(graph, table.num_microbatches, order)
    better = other is not None and other.makespan_s < table.makespan_s and not replay(other).faults
    bound_s = grid.bound_s(found.bound, len(steps))
    return Improved(table=other if better and other is not None else table, bound_s=bound_s)


def _shorter(table: Timetable, grid: Grid, low_s: float, high_s: float, time_s: float) -> Timetable | None:
    """The schedule with the steps that start within a span in another order, if that is shorter."""
    graph = table.graph
    order = order_of(table)
    starts = _grid_starts(grid, order)
    moments = {(graph.index[slot.block], slot.microbatch): slot.start_s for slot in table.slots()}
    inside = {step for step, moment in moments.items() if low_s <= moment <= high_s}
    makespan = max(start + grid.times[step[0]] for step, start in starts.items())
    piece = _cut(grid, order, starts, inside)
    found = solve_piece(grid, piece, time_s, below=makespan)
    if not found.starts:
        return None
    rank = {block: place for place, block in enumerate(graph.topological)}
    mixed = []
    for one in order:
        places = [place for place, step in enumerate(one) if step in inside]
        sorted_inside = sorted((one[place] for place in places), key=lambda s: (found.starts[s], s[1], rank[s[0]]))
        new = list(one)
        for place, step in zip(places, sorted_inside, strict=True):
            new[place] = step
        mixed.append(new)
    other = timetable(graph, table.num_microbatches, mixed)
    return other if other is not None and not replay(other).faults else None


def _cut(grid: Grid, order: list[list[Step]], starts: dict[Step, int], inside: set[Step]) -> Piece:
    """The piece with what comes before as releases and what comes after as tails."""
    graph = grid.graph
    release = dict.fromkeys(inside, 0)
    held: dict[int, int] = {}
    before: dict[int, int] = {}
    for device, one in enumerate(order):
        first = next((place for place, step in enumerate(one) if step in inside), len(one))
        held[device] = sum(grid.memory[block] for block, _ in one[:first])
        before[device] = starts[one[first - 1]] + grid.times[one[first - 1][0]] if first else 0
    for block, microbatch in inside:
        moments = [before[device] for device in graph.blocks[block].devices]
        for source, lag in grid.edges[block]:
            if (source, microbatch) not in inside:
                moments.append(starts[source, microbatch] + lag)
        release[block, microbatch] = max(moments)
    paths = _paths(grid, order, starts, inside)
    device_tail = {}
    for device, one in enumerate(order):
        last = max((place for place, step in enumerate(one) if step in inside), default=len(one))
        if last + 1 < len(one):
            device_tail[device] = paths[one[last + 1]]
    tail = {}
    followers = _followers(grid)
    for block, microbatch in inside:
        after = [0]
        for follower, lag in followers[block]:
            if (follower, microbatch) not in inside:
                after.append(lag - grid.times[block] + paths[follower, microbatch])
        tail[block, microbatch] = max(after)
    return Piece(
        steps=sorted(inside),
        release=release,
        tail=tail,
        device_tail=device_tail,
        held=held,
        hint={step: starts[step] for step in inside},
        horizon=max(start + grid.times[step[0]] for step, start in starts.items()),
    )


def _paths(grid: Grid, order: list[list[Step]], starts: dict[Step, int], inside: set[Step]) -> dict[Step, int]:
    """For each step outside the piece: the longest path from its start to the end of the schedule."""
    after: dict[Step, list[Step]] = {}
    for one in order:
        for step, following in pairwise(one):
            after.setdefault(step, []).append(following)
    followers = _followers(grid)
    paths: dict[Step, int] = {}
    rank = {block: place for place, block in enumerate(grid.graph.topological)}
    places = {step: place for one in order for place, step in enumerate(one)}
    for step in sorted(starts, key=lambda s: (starts[s], places[s], rank[s[0]]), reverse=True):
        if step in inside:
            continue
        block, microbatch = step
        ends = [grid.times[block]]
        ends += [grid.times[block] + paths[other] for other in after.get(step, ()) if other in paths]
        ends += [lag + paths[f, microbatch] for f, lag in followers[block] if (f, microbatch) in paths]
        paths[step] = max(ends)
    return paths


def _followers(grid: Grid) -> list[list[tuple[int, int]]]:
    found: list[list[tuple[int, int]]] = [[] for _ in grid.edges]
    for block, edges in enumerate(grid.edges):
        for source, lag in edges:
            found[source].append((block, lag))
    return found


def _grid_starts(grid: Grid, order: list[list[Step]]) -> dict[Step, int]:
    """Earliest starts in grid units."""
    starts = earliest(grid.graph, grid.times, grid.edges, order)
    assert starts is not None, "a schedule that was valid is not"
    return starts
