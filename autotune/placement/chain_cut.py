"""Where to cut a chain of ops into stages, on which devices, and into how many micro-batches.

With N micro-batches a pipeline takes about (N-1)·(time of the bottleneck stage or link per micro-batch) + (latency of one
micro-batch through all stages and links). For a limit on the first term, the second is a shortest path over (ops done, devices
used, last device): exact dynamic programming, where equal devices are counted by class. The minimum of the sum follows from
all limits that can change the path. PipeDream and Alpa do the same for the bottleneck stage alone. Where too many devices
differ, some orders of the devices are tried instead of all.

The estimate includes the memory of one micro-batch only, and no bubbles. Therefore cuts for several numbers of micro-batches,
and their neighbours, are compared by real schedules (the portfolio), and the search starts from the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from autotune.placement.chain_costs import Cut, StageCosts, cut_blocks
from autotune.placement.chain_paths import Paths, num_states
from autotune.schedule.memory import fitting_order
from autotune.schedule.portfolio import portfolio, split_portfolio
from autotune.workloads.blocks import BlockGraph, split_backward
from autotune.workloads.errors import InfeasiblePlanError

_MOST_STATES = 5_000
_KEPT = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A cut, its number of micro-batches, and the makespan of the best schedule of the portfolio."""

    cut: Cut
    num_microbatches: int
    graph: BlockGraph
    makespan_s: float


def best_cut(
    costs_of: Callable[[int], StageCosts],
    counts: Iterable[int],
    max_moves: int = 40,
    num_stages: int | None = None,
) -> Judged:
    """The best cut over the numbers of micro-batches: the exact one of each by the estimate, then neighbours by schedule.

    `num_stages`: the exact number of stages, if given.
    """
    judged = []
    for count in counts:
        costs = costs_of(count)
        found = [judge(costs, cut, count) for cut in cuts(costs, count, num_stages)]
        judged += [(costs, one) for one in found if one is not None]
    if not judged:
        raise InfeasiblePlanError(
            "no cut into stages fits the devices' memory: use more devices, or smaller micro-batches"
        )
    costs, best = min(judged, key=lambda pair: pair[1].makespan_s)
    return _climb(costs, best, max_moves)


def cuts(costs: StageCosts, count: int, num_stages: int | None = None) -> list[Cut]:
    """The best cuts by the estimate, and the cut with the shortest round trip: in 1F1B a stage of S that has sent S
    micro-batches waits for the first one's gradient. Where the devices allow too many choices, the best of some orders.
    """
    if num_states(costs) <= _MOST_STATES:
        found = _front(costs, count, Paths(costs, num_stages).shortest)
    else:
        found = [cut for order in _orders(costs, num_stages) for cut in _ordered_front(costs, count, order)]

    def with_turns_s(cut: Cut) -> float:
        way_s = _way_s(costs, cut)
        return (count - 1) * max(_busiest(costs, cut), way_s / len(cut.devices)) + way_s

    best = sorted(dict.fromkeys(found), key=lambda cut: estimate_s(costs, cut, count))[:_KEPT]
    return list(dict.fromkeys([*best, *sorted(found, key=with_turns_s)[:1]]))


def _orders(costs: StageCosts, num_stages: int | None) -> Iterator[tuple[int, ...]]:
    """The fastest devices in the given order, sorted fastest first, and slowest first."""
    by_speed = sorted(range(costs.num_devices), key=lambda device: float(costs.work_s(device).sum()))
    for size in (num_stages,) if num_stages else range(1, min(costs.num_devices, costs.num_ops) + 1):
        chosen = by_speed[:size]
        yield from dict.fromkeys((tuple(sorted(chosen)), tuple(chosen), tuple(reversed(chosen))))


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
    """(N-1)·(bottleneck stage or link) + (latency of one micro-batch, forward and backward)."""
    return (count - 1) * _busiest(costs, cut) + _way_s(costs, cut)


def chain_cut(costs: StageCosts, count: int, num_stages: int | None = None) -> Cut | None:
    """The cut of least estimate, one stage per device at most, or exactly so many stages; None if memory allows none."""
    return _least(costs, count, _front(costs, count, Paths(costs, num_stages).shortest))


def ordered_cut(costs: StageCosts, count: int, devices: Sequence[int]) -> Cut | None:
    """The cut of least estimate with a stage on each of these devices, in this order; None if memory allows none."""
    return _least(costs, count, _ordered_front(costs, count, devices))


def _ordered_front(costs: StageCosts, count: int, devices: Sequence[int]) -> list[Cut]:
    paths = Paths(costs)
    return _front(costs, count, lambda limit_s: paths.along(devices, limit_s))


def _least(costs: StageCosts, count: int, found: Sequence[Cut]) -> Cut | None:
    return min(found, key=lambda cut: estimate_s(costs, cut, count), default=None)


def _front(costs: StageCosts, count: int, shortest: Callable[[float], tuple[float, Cut] | None]) -> list[Cut]:
    """Cuts for decreasing limits on the bottleneck, from the cut of least latency to that of least estimate and some beyond,
    while the latency of one micro-batch allows an improvement.
    """
    found, least_s, limit_s = list[Cut](), math.inf, math.inf
    reached = shortest(limit_s)
    shortest_s = reached[0] if reached else math.inf
    while reached is not None and _busiest(costs, reached[1]) < limit_s:
        found.append(reached[1])
        limit_s = _busiest(costs, reached[1])
        least_s = min(least_s, estimate_s(costs, reached[1], count))
        if count == 1 or shortest_s >= least_s:
            break
        reached = shortest(limit_s * (1 - 1e-12))
    return found


def _busiest(costs: StageCosts, cut: Cut) -> float:
    """Seconds of one micro-batch on the bottleneck stage or link; links are full duplex."""
    return max([*_works(costs, cut), *(costs.busy_s(a, b, first) for first, a, b in _hops(cut))])


def _way_s(costs: StageCosts, cut: Cut) -> float:
    return sum(_works(costs, cut)) + sum(costs.link_s(a, b, first) for first, a, b in _hops(cut))


def _works(costs: StageCosts, cut: Cut) -> list[float]:
    stages = zip(cut.first_ops, (*cut.first_ops[1:], costs.num_ops), cut.devices, strict=True)
    return [float(costs.work_s(device)[first:end].sum()) for first, end, device in stages]


def _hops(cut: Cut) -> Iterator[tuple[int, int, int]]:
    """Hops between stages in both directions: the later stage's first op, source, target."""
    for first, a, b in zip(cut.first_ops[1:], cut.devices, cut.devices[1:], strict=False):
        yield first, a, b
        yield first, b, a


def _climb(costs: StageCosts, best: Judged, max_moves: int) -> Judged:
    """Local search: boundaries move by one op while the schedule gets shorter."""
    moves = 0
    while moves < max_moves:
        better = None
        for cut in neighbours(best.cut, costs.num_ops):
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


def neighbours(cut: Cut, num_ops: int) -> Iterator[Cut]:
    """One boundary moved by one op."""
    ends = (*cut.first_ops[1:], num_ops)
    for stage in range(1, len(cut.first_ops)):
        for moved in (cut.first_ops[stage] - 1, cut.first_ops[stage] + 1):
            if cut.first_ops[stage - 1] < moved < ends[stage]:
                first_ops = (*cut.first_ops[:stage], moved, *cut.first_ops[stage + 1 :])
                yield Cut(first_ops=first_ops, devices=cut.devices)
