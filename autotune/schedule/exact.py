"""A piece of a finite schedule, solved by CP-SAT: all of it if it is small, else the blocks within a span of time.

Blocks before the piece are fixed, and blocks after it keep their order. The makespan is then the latest end within the piece
plus the longest path that follows it, so the size of the problem does not depend on the number of micro-batches. The
memory before and after does not change either, since memory depends on order alone. Micro-batches are interchangeable,
so each block takes them in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.schedule.grid import Grid, make_grid
from autotune.schedule.solver import Outcome, new_model, solve
from autotune.workloads.blocks import BlockGraph

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
    """The longest path after its end; missing: 0."""
    device_tail: Mapping[int, int] = field(default_factory=dict)
    """The longest path after the last end on a device."""
    held: Mapping[int, int] = field(default_factory=dict)
    """Memory held on a device before; missing: 0."""
    hint: Mapping[Step, int] = field(default_factory=dict)
    horizon: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceSolution:
    """Starts of the steps, if found, and a lower bound on the makespan within the piece."""

    outcome: Outcome
    starts: Mapping[Step, int]
    makespan: int
    bound: int


def solve_piece(grid: Grid, piece: Piece, time_s: float, *, below: int | None = None) -> PieceSolution:
    """The shortest schedule of a piece; with `below`, only one that is shorter than that."""
    problem = _Problem(grid, piece, below)
    solved = solve(problem.model, time_s)
    if not solved.found:
        return PieceSolution(outcome=solved.outcome, starts={}, makespan=0, bound=0)
    found = {step: solved.value(start) for step, start in problem.starts.items()}
    makespan = solved.value(problem.makespan)
    return PieceSolution(outcome=solved.outcome, starts=found, makespan=makespan, bound=solved.bound)


class _Problem:
    """The model of a piece."""

    def __init__(self, grid: Grid, piece: Piece, below: int | None) -> None:
        self.model = new_model()
        self._grid, self._piece = grid, piece
        self.starts = {
            step: self.model.new_int_var(piece.release.get(step, 0), piece.horizon, "") for step in piece.steps
        }
        self.makespan = self.model.new_int_var(0, piece.horizon if below is None else below - 1, "")
        for step in piece.steps:
            self._step(step)
        for device in range(grid.graph.num_devices):
            self._device(device, [step for step in piece.steps if device in grid.graph.blocks[step[0]].devices])
        self.model.minimize(self.makespan)
        for step, moment in piece.hint.items():
            self.model.add_hint(self.starts[step], moment)

    def _step(self, step: Step) -> None:
        """After its dependencies, and after the same block of the previous micro-batch."""
        block, microbatch = step
        for source, lag in self._grid.edges[block]:
            if (source, microbatch) in self.starts:
                self.model.add(self.starts[step] >= self.starts[source, microbatch] + lag)
        if (block, microbatch - 1) in self.starts:
            self.model.add(self.starts[step] >= self.starts[block, microbatch - 1] + self._grid.times[block])
        self._ends(step, self._piece.tail.get(step, 0))

    def _device(self, device: int, mine: Sequence[Step]) -> None:
        """One block at a time, and memory within the limit."""
        times, memory, limit = self._grid.times, self._grid.memory, self._grid.limits[device]
        self.model.add_no_overlap(
            [self.model.new_fixed_size_interval_var(self.starts[step], times[step[0]], "") for step in mine]
        )
        for step in mine:
            self._ends(step, self._piece.device_tail.get(device, 0))
        changes = {step: memory[step[0]] for step in mine if memory[step[0]]}
        held = self._piece.held.get(device, 0)
        if limit is None or held + sum(max(change, 0) for change in changes.values()) <= limit:
            return
        self.model.add_reservoir_constraint(
            [self.starts[step] for step in changes],
            list(changes.values()),
            min_level=-sum(max(-change, 0) for change in changes.values()),
            max_level=limit - held,
        )

    def _ends(self, step: Step, tail: int) -> None:
        self.model.add(self.makespan >= self.starts[step] + self._grid.times[step[0]] + tail)


def one_microbatch(graph: BlockGraph) -> tuple[int, ...] | None:
    """The blocks in an order in which one micro-batch fits; None if there is none."""
    grid = make_grid(graph)
    steps = [(block, 0) for block in range(len(graph.blocks))]
    horizon = sum(lag for edges in grid.edges for _, lag in edges) + sum(grid.times)
    found = solve_piece(grid, Piece(steps=steps, horizon=horizon), _FIT_S)
    rank = {block: place for place, block in enumerate(graph.topological)}
    if not found.starts:
        return None
    return tuple(block for block, _ in sorted(steps, key=lambda step: (found.starts[step], rank[step[0]])))
