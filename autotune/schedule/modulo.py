"""A repetend is a modulo schedule: one micro-batch's starts s, such that starting the next one T later never collides.

With start s = p + T·q, 0 ≤ p < T: a dependency says s_j ≥ s_i + d_i (+ link); on a device blocks do not overlap around the
circle of length T, so for each pair either p_i + d_i ≤ p_j and p_j + d_j ≤ p_i + T or the other way round; and the steady memory
at the start of each block a that takes memory is Σ_i m_i·([p_i ≤ p_a] − q_i), which must be within the limit. That is one small
CP-SAT model for a given T. Stretching a schedule keeps it valid, so an infeasible T rules out all below it.

Tessel (arXiv 2311.15269) enumerates which micro-batch each block of the repetend belongs to and runs z3 on each; here the q are
those numbers, and the solver searches over them itself. A device whose blocks do not free all they allocate has no steady
state: its limit is checked in the finite schedule only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.schedule.grid import Grid
from autotune.schedule.solver import Outcome, new_model, solve
from autotune.workloads.blocks import BlockGraph


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetend:
    """A modulo schedule in units of a grid."""

    period: int
    starts: tuple[int, ...]
    """Of each block of one micro-batch; the next micro-batch starts a period later."""

    def scaled(self, factor: int) -> Repetend:
        """The same on a grid that is finer by a factor."""
        return Repetend(period=self.period * factor, starts=tuple(start * factor for start in self.starts))


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """The outcome for one period."""

    outcome: Outcome
    repetend: Repetend | None


def find_repetend(  # noqa: PLR0913 - one model and its hints
    grid: Grid,
    period: int,
    time_s: float,
    *,
    hint: Repetend | None = None,
    short: bool = False,
    phases: Mapping[int, int] | None = None,
) -> Attempt:
    """A repetend of this period, or the proof that there is none, if the time is enough; `short`: of least latency.

    `phases`: fixed positions of some blocks in the period; infeasibility then holds for these positions only.
    """
    if any(duration > period for duration in grid.times):
        return Attempt(outcome=Outcome.INFEASIBLE, repetend=None)
    problem = _Problem(grid, period)
    if hint is not None:
        problem.suggest(hint)
    if short:
        problem.minimize_latency()
    for block, phase in (phases or {}).items():
        problem.model.add(problem.phases[block] == phase)
    solved = solve(problem.model, time_s)
    if not solved.found:
        return Attempt(outcome=Outcome.UNKNOWN if phases else solved.outcome, repetend=None)
    starts = tuple(
        solved.value(p) + period * solved.value(q) for p, q in zip(problem.phases, problem.rounds, strict=True)
    )
    return Attempt(outcome=solved.outcome, repetend=Repetend(period=period, starts=starts))


def is_repetend(grid: Grid, repetend: Repetend) -> bool:
    """Whether a schedule that the model did not make keeps every rule."""
    period, starts = repetend.period, repetend.starts
    for block, edges in enumerate(grid.edges):
        if any(starts[block] < starts[source] + lag for source, lag in edges):
            return False
    for device, blocks in enumerate(grid.graph.on_device):
        around = sorted(blocks, key=lambda block: starts[block] % period)
        ends = [starts[block] % period + grid.times[block] for block in around]
        following = [
            *(starts[block] % period for block in around[1:]),
            *(starts[b] % period + period for b in around[:1]),
        ]
        if any(end > after for end, after in zip(ends, following, strict=True)):
            return False
        limit = _steady_limit(grid, device)
        if limit is None:
            continue
        level = -sum(grid.memory[block] * (starts[block] // period) for block in blocks)
        for block in around:
            level += grid.memory[block]
            if level > limit:
                return False
    return True


def _steady_limit(grid: Grid, device: int) -> int | None:
    """The limit of a device; None where there is none or no steady state."""
    changes = [grid.graph.blocks[block].memory for block in grid.graph.on_device[device]]
    unbalanced = abs(sum(changes)) > 1e-9 * max(map(abs, changes), default=0.0)
    return None if unbalanced else grid.limits[device]


class _Problem:
    """The model for one period."""

    def __init__(self, grid: Grid, period: int) -> None:
        self.model = new_model()
        self._graph, self._grid, self._period = grid.graph, grid, period
        num = len(grid.times)
        most = sum((max((lag for _, lag in edges), default=0) + period) // period + 1 for edges in grid.edges)
        self.phases = [self.model.new_int_var(0, period - 1, f"p{block}") for block in range(num)]
        self.rounds = [self.model.new_int_var(0, most, f"q{block}") for block in range(num)]
        self._first: dict[tuple[int, int], Any] = {}
        for block, edges in enumerate(grid.edges):
            for source, lag in edges:
                self.model.add(self._start(block) >= self._start(source) + lag)
        for device, blocks in enumerate(grid.graph.on_device):
            self._circle(blocks)
            self._memory(device, blocks)
        self._break_symmetry()

    def suggest(self, hint: Repetend) -> None:
        for block, start in enumerate(hint.starts):
            self.model.add_hint(self.phases[block], start * self._period // hint.period % self._period)
            self.model.add_hint(self.rounds[block], start * self._period // hint.period // self._period)

    def minimize_latency(self) -> None:
        latency = self.model.new_int_var(0, self._period * (len(self.phases) * 4 + 4), "latency")
        for block, duration in enumerate(self._grid.times):
            self.model.add(latency >= self._start(block) + duration)
        self.model.minimize(latency)

    def _start(self, block: int) -> Any:
        return self.phases[block] + self._period * self.rounds[block]

    def _circle(self, blocks: tuple[int, ...]) -> None:
        """No two of a device's blocks overlap around the circle."""
        times = self._grid.times
        for place, a in enumerate(blocks):
            for b in blocks[place + 1 :]:
                if (a, b) not in self._first:
                    first = self.model.new_bool_var("")
                    self._first[a, b], self._first[b, a] = first, ~first
                    for one, other in ((a, b), (b, a)):
                        before = self._first[one, other]
                        self.model.add(self.phases[one] + times[one] <= self.phases[other]).only_enforce_if(before)
                        wrapped = self.phases[one] + self._period
                        self.model.add(self.phases[other] + times[other] <= wrapped).only_enforce_if(before)
        copies = [
            self.model.new_fixed_size_interval_var(self.phases[block] + shift, times[block], "")
            for block in blocks
            for shift in (0, self._period)
        ]
        self.model.add_no_overlap(copies)  # implied by the pairs; it helps the solver

    def _memory(self, device: int, blocks: tuple[int, ...]) -> None:
        limit = _steady_limit(self._grid, device)
        if limit is None:
            return
        memory = self._grid.memory
        for taker in blocks:
            if memory[taker] > 0:
                held = [
                    memory[block] * ((1 if block == taker else self._first[block, taker]) - self.rounds[block])
                    for block in blocks
                    if memory[block]
                ]
                self.model.add(sum(held) <= limit)

    def _break_symmetry(self) -> None:
        """Breaks symmetry: the first block starts at 0; in a component with one source, that block is in round 0."""
        first = self._graph.topological[0]
        self.model.add(self.phases[first] == 0)
        for sources in _components(self._graph).values():
            if len(sources) == 1:
                self.model.add(self.rounds[sources[0]] == 0)


def _components(graph: BlockGraph) -> Mapping[int, list[int]]:
    """Blocks that wait for nothing, by the part of the graph that they belong to."""
    group = list(range(len(graph.blocks)))

    def find(block: int) -> int:
        while group[block] != block:
            block = group[block]
        return block

    for block, before in enumerate(graph.before):
        for source, _ in before:
            group[find(block)] = find(source)
    sources: dict[int, list[int]] = {}
    for block, before in enumerate(graph.before):
        if not before:
            sources.setdefault(find(block), []).append(block)
    return sources
