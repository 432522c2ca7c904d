"""Where to cut a chain of ops into stages, on which devices, and into how many micro-batches.

With N micro-batches a pipeline takes about (N-1)·(work of the busiest stage) + (way of one micro-batch through all stages and
links). For a limit on the first the second is a shortest path over (ops done, devices used, last device): dynamic programming,
exact, with devices that are alike counted instead of named. Going down through the limits that matter gives the minimum
of the sum. PipeDream and Alpa do the same for the busiest stage alone.

That estimate knows no memory but that of one micro-batch, and no bubbles: so cuts for several numbers of micro-batches, and
their neighbours, are judged by real schedules (the portfolio), and the best is what the search then starts from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from autotune.schedule.memory import fitting_order
from autotune.schedule.portfolio import portfolio, split_portfolio
from autotune.schedule.stage_costs import Cut, StageCosts, cut_blocks
from autotune.simulate.engine import Floats
from workloads.blocks import BlockGraph, split_backward
from workloads.errors import InfeasiblePlanError

State = tuple[int, ...]
"""Devices used, per class."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A cut, its number of micro-batches, and the makespan of the best schedule of the portfolio."""

    cut: Cut
    num_microbatches: int
    graph: BlockGraph
    makespan_s: float


def best_cut(costs_of: Callable[[int], StageCosts], counts: Iterable[int], max_moves: int = 40) -> Judged:
    """The best cut over the numbers of micro-batches: the exact one of each by the estimate, then neighbours by schedule."""
    judged = []
    for count in counts:
        costs = costs_of(count)
        cut = chain_cut(costs, count)
        found = None if cut is None else judge(costs, cut, count)
        if found is not None:
            judged.append((costs, found))
    if not judged:
        raise InfeasiblePlanError(
            "no cut into stages fits the devices' memory: use more devices, or smaller micro-batches"
        )
    costs, best = min(judged, key=lambda pair: pair[1].makespan_s)
    return _climb(costs, best, max_moves)


def judge(costs: StageCosts, cut: Cut, count: int) -> Judged | None:
    """The best of the portfolio for a cut; None if not even one micro-batch fits."""
    graph = cut_blocks(costs, cut)
    try:
        members = [*portfolio(graph, count, fitting_order(graph, count))]
        parts = split_backward(graph)
        members += split_portfolio(graph, parts, count, fitting_order(parts, count))
    except InfeasiblePlanError:
        return None
    least_s = min(member.makespan_s for member in members)
    return Judged(cut=cut, num_microbatches=count, graph=graph, makespan_s=least_s)


def estimate_s(costs: StageCosts, cut: Cut, count: int) -> float:
    """(N-1)·(busiest stage) + (way through all stages and links, there and back)."""
    ends = (*cut.first_ops[1:], costs.num_ops)
    works = [
        float(costs.work_s(device)[first:end].sum())
        for first, end, device in zip(cut.first_ops, ends, cut.devices, strict=True)
    ]
    hops = zip(cut.first_ops[1:], cut.devices, cut.devices[1:], strict=False)
    links = sum(costs.link_s(a, b, first) + costs.link_s(b, a, first) for first, a, b in hops)
    return (count - 1) * max(works) + sum(works) + links


def chain_cut(costs: StageCosts, count: int) -> Cut | None:
    """The cut of least estimate, one stage per device at most; None if memory allows none."""
    paths = _Paths(costs)
    free = paths.shortest(math.inf)
    if free is None:
        return None
    shortest_s, best = free
    best_s = estimate_s(costs, best, count)
    limit_s = _busiest(costs, best)
    while True:
        found = paths.shortest(limit_s * (1 - 1e-12))
        if found is None:
            return best
        limit_s = _busiest(costs, found[1])
        if (now_s := estimate_s(costs, found[1], count)) < best_s:
            best, best_s = found[1], now_s
        if count == 1 or shortest_s >= best_s:
            return best


def _busiest(costs: StageCosts, cut: Cut) -> float:
    ends = (*cut.first_ops[1:], costs.num_ops)
    stages = zip(cut.first_ops, ends, cut.devices, strict=True)
    return max(float(costs.work_s(device)[first:end].sum()) for first, end, device in stages)


class _Paths:
    """Shortest ways of one micro-batch, with no stage above a limit of work."""

    def __init__(self, costs: StageCosts) -> None:
        self._costs = costs
        self._classes = _classes(costs)
        self._work = [self._between(costs.work_s(one[0])) for one in self._classes]
        need = self._between(costs.held_bytes) + self._between(costs.saved_bytes)
        upper = np.triu(np.ones_like(need, dtype=bool), k=1)
        self._fits = [upper & (need <= costs.memory_bytes[one[0]]) for one in self._classes]

    def shortest(self, limit_s: float) -> tuple[float, Cut] | None:
        num_ops = self._costs.num_ops
        start = (0,) * len(self._classes)
        ways: dict[State, dict[int, Floats]] = {start: {-1: np.where(np.arange(num_ops + 1) == 0, 0.0, np.inf)}}
        came: dict[tuple[State, int], tuple[list[int], Floats, Floats]] = {}
        least: tuple[float, State, int] = (math.inf, start, -1)
        for state in self._states():
            for last, way in ways.get(state, {}).items():
                if last >= 0 and way[num_ops] < least[0]:
                    least = (float(way[num_ops]), state, last)
            for kind in range(len(self._classes)):
                if state in ways and state[kind] < len(self._classes[kind]):
                    self._extend(ways, came, state, kind, limit_s)
        if least[0] == math.inf:
            return None
        return least[0], self._trace(came, least[1], least[2])

    def _extend(self, ways: dict, came: dict, state: State, kind: int, limit_s: float) -> None:  # type: ignore[type-arg]
        """One more stage, on a device of a class."""
        lasts = sorted(ways[state])
        arrivals = np.stack([ways[state][last] + self._hop(last, kind, state) for last in lasts])
        from_last = arrivals.argmin(axis=0)
        arrived = arrivals.min(axis=0)
        allowed = self._fits[kind] & (self._work[kind] <= limit_s)
        total = np.where(allowed, arrived[:, None] + self._work[kind], np.inf)
        into = tuple(used + (index == kind) for index, used in enumerate(state))
        first = total.argmin(axis=0)
        ways.setdefault(into, {})[kind] = total.min(axis=0)
        came[into, kind] = (lasts, from_last, first)

    def _hop(self, last: int, kind: int, state: State) -> Floats:
        """Per first op of the stage: the links there and back."""
        costs = self._costs
        hop = np.zeros(costs.num_ops + 1)
        if last < 0:
            return hop
        source = self._classes[last][state[last] - 1]
        target = self._classes[kind][state[kind]]
        for a, b in ((source, target), (target, source)):
            hop[:-1] += costs.latency_s[a, b] + costs.boundary_bytes * costs.seconds_per_byte[a, b]
        return hop

    def _states(self) -> Iterator[State]:
        """All of them, those with fewer devices first."""
        sizes = [len(one) + 1 for one in self._classes]
        yield from sorted(np.ndindex(*sizes), key=sum)

    def _trace(self, came: dict, state: State, last: int) -> Cut:  # type: ignore[type-arg]
        first_ops: list[int] = []
        devices: list[int] = []
        end = self._costs.num_ops
        while last >= 0:
            lasts, from_last, first = came[state, last]
            devices.append(self._classes[last][state[last] - 1])
            end = int(first[end])
            first_ops.append(end)
            state = tuple(used - (index == last) for index, used in enumerate(state))
            last = lasts[int(from_last[end])]
        return Cut(first_ops=tuple(reversed(first_ops)), devices=tuple(reversed(devices)))

    def _between(self, per_op: Floats) -> Floats:
        """The sum over the ops from a row's to a column's."""
        sums = np.concatenate([[0.0], np.cumsum(per_op)])
        table: Floats = sums[None, :] - sums[:, None]
        return table


def _classes(costs: StageCosts) -> list[list[int]]:
    """Devices that could change places without anything changing."""
    classes: list[list[int]] = []
    for device in range(costs.num_devices):
        for one in classes:
            if _alike(costs, one[0], device):
                one.append(device)
                break
        else:
            classes.append([device])
    return classes


def _alike(costs: StageCosts, a: int, b: int) -> bool:
    same = costs.memory_bytes[a] == costs.memory_bytes[b] and np.array_equal(costs.work_s(a), costs.work_s(b))
    swapped = np.arange(costs.num_devices)
    swapped[[a, b]] = b, a
    return bool(same) and all(
        np.array_equal(table, table[np.ix_(swapped, swapped)]) for table in (costs.latency_s, costs.seconds_per_byte)
    )


def _climb(costs: StageCosts, best: Judged, max_moves: int) -> Judged:
    """Boundaries moved by one op as long as the schedule gets shorter."""
    moves = 0
    while moves < max_moves:
        better = None
        for cut in _neighbours(best.cut, costs.num_ops):
            moves += 1
            found = judge(costs, cut, best.num_microbatches)
            if found is not None and found.makespan_s < best.makespan_s * (1 - 1e-9):
                better = found
                break
            if moves >= max_moves:
                break
        if better is None:
            return best
        best = better
    return best


def _neighbours(cut: Cut, num_ops: int) -> Iterator[Cut]:
    ends = (*cut.first_ops[1:], num_ops)
    for stage in range(1, len(cut.first_ops)):
        for moved in (cut.first_ops[stage] - 1, cut.first_ops[stage] + 1):
            if cut.first_ops[stage - 1] < moved < ends[stage]:
                first_ops = (*cut.first_ops[:stage], moved, *cut.first_ops[stage + 1 :])
                yield Cut(first_ops=first_ops, devices=cut.devices)
