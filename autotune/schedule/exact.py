"""A piece of a finite schedule, solved by CP-SAT: all of it if it is small, else the blocks within a span of time.

What runs before the piece stays as it is, and what runs after keeps its order: then the makespan is the latest of all ends
within the piece, each with the longest way that hangs on it, and the piece is a problem of its own size however many
micro-batches there are. What devices hold before and after does not change either, as memory depends on order alone.
Micro-batches are alike, so each block takes them in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.schedule.grid import Grid, make_grid
from autotune.schedule.solver import Outcome, new_model, solve
from workloads.blocks import BlockGraph

Step = tuple[int, int]
"""A block and a micro-batch."""
_FIT_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Steps to put in order. Times are in units of the grid."""

    steps: Sequence[Step]
    release: Mapping[Step, int] = field(default_factory=dict)
    """Not before; missing: 0."""
    tail: Mapping[Step, int] = field(default_factory=dict)
    """What hangs on its end, at least; missing: 0."""
    device_tail: Mapping[int, int] = field(default_factory=dict)
    """What hangs on the last end on a device."""
    held: Mapping[int, int] = field(default_factory=dict)
    """What a device holds before; missing: 0."""
    hint: Mapping[Step, int] = field(default_factory=dict)
    horizon: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceSolution:
    """Starts of the steps if any were found, and what the makespan cannot be below within the piece."""

    outcome: Outcome
    starts: Mapping[Step, int]
    makespan: int
    bound: int


def solve_piece(
    graph: BlockGraph, grid: Grid, piece: Piece, time_s: float, *, below: int | None = None
) -> PieceSolution:
    """The shortest way to run a piece; with `below`, only what is shorter than that."""
    model = new_model()
    steps = set(piece.steps)
    starts = {step: model.new_int_var(piece.release.get(step, 0), piece.horizon, "") for step in piece.steps}
    for block, microbatch in piece.steps:
        for source, lag in grid.edges[block]:
            if (source, microbatch) in steps:
                model.add(starts[block, microbatch] >= starts[source, microbatch] + lag)
        if (block, microbatch - 1) in steps:
            model.add(starts[block, microbatch] >= starts[block, microbatch - 1] + grid.times[block])
    makespan = model.new_int_var(0, piece.horizon if below is None else below - 1, "")
    for step in piece.steps:
        model.add(makespan >= starts[step] + grid.times[step[0]] + piece.tail.get(step, 0))
    for device in range(graph.num_devices):
        _add_device(model, graph, grid, piece, device, starts, makespan)
    model.minimize(makespan)
    for step, moment in piece.hint.items():
        model.add_hint(starts[step], moment)
    solved = solve(model, time_s)
    if not solved.found:
        return PieceSolution(outcome=solved.outcome, starts={}, makespan=0, bound=0)
    found = {step: solved.value(starts[step]) for step in piece.steps}
    return PieceSolution(outcome=solved.outcome, starts=found, makespan=solved.value(makespan), bound=solved.bound)


def _add_device(
    model: Any, graph: BlockGraph, grid: Grid, piece: Piece, device: int, starts: Mapping[Step, Any], makespan: Any
) -> None:
    """One block at a time, and memory within the limit."""
    mine = [step for step in piece.steps if device in graph.blocks[step[0]].devices]
    if not mine:
        return
    model.add_no_overlap([model.new_fixed_size_interval_var(starts[step], grid.times[step[0]], "") for step in mine])
    tail = piece.device_tail.get(device, 0)
    if tail:
        for step in mine:
            model.add(makespan >= starts[step] + grid.times[step[0]] + tail)
    limit = grid.limits[device]
    changes = [(step, grid.memory[step[0]]) for step in mine if grid.memory[step[0]]]
    taken = sum(max(change, 0) for _, change in changes)
    if limit is None or piece.held.get(device, 0) + taken <= limit or not changes:
        return
    model.add_reservoir_constraint(
        [starts[step] for step, _ in changes],
        [change for _, change in changes],
        min_level=-sum(max(-change, 0) for _, change in changes),
        max_level=limit - piece.held.get(device, 0),
    )


def one_microbatch(graph: BlockGraph) -> tuple[int, ...] | None:
    """The blocks in an order in which one micro-batch fits; None if there is none."""
    grid = make_grid(graph)
    steps = [(block, 0) for block in range(len(graph.blocks))]
    horizon = sum(lag for edges in grid.edges for _, lag in edges) + sum(grid.times)
    found = solve_piece(graph, grid, Piece(steps=steps, horizon=horizon), _FIT_S)
    rank = {block: place for place, block in enumerate(graph.topological)}
    if not found.starts:
        return None
    return tuple(block for block, _ in sorted(steps, key=lambda step: (found.starts[step], rank[step[0]])))
