"""Groups of ops that a placement search moves as one: neighbours in the order of execution, cut where few bytes pass.

Ops that must stay together, and ops that read each other in a cycle (a residual block and what it calls), are one unit. Units are
ordered so that each reads earlier ones only, so groups of neighbouring units are acyclic and every group runs at once. Where
there are more units than groups, dynamic programming over that order finds the cuts with the least

    Σ over groups (share of the work · number of groups)² / number of groups + Σ over cuts bytes that pass / mean bytes of a cut

The work of a unit is the mean of its shares of time and of parameters: a layer of few operations but most of the parameters is
what a placement gains most with. TAG (arXiv 2302.06126) partitions with METIS, whose parts may read each other in cycles.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from autotune.simulate.cost_tables import Costs
from autotune.simulate.task_graph import Floats
from autotune.workloads.graph import OpGraph
from autotune.workloads.tensor_graph.operations import Operations

MOST_GROUPS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Ops that are placed together."""

    ops: tuple[int, ...]
    """Indices in the model's graph, ascending."""
    param_bytes: float
    passing_bytes: float
    """Per sample: what later groups read of this one and of earlier ones."""


def group_ops(
    graph: OpGraph, operations: Operations, costs: Costs, global_batch: int, most: int = MOST_GROUPS
) -> tuple[Group, ...]:
    """At most so many groups, in an order in which each reads earlier ones only."""
    units = _units(graph, operations)
    passing = _passing_bytes(graph, operations, units)
    cuts = list(range(1, len(units)))
    if len(units) > most:
        cuts = _best_cuts(_work(graph, costs, global_batch, units), passing, most)
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(units)], strict=True):
        ops = tuple(sorted(op for unit in units[start:end] for op in unit))
        found.append(
            Group(
                ops=ops,
                param_bytes=float(sum(graph.ops[op].param_bytes for op in ops)),
                passing_bytes=passing[end - 1],
            )
        )
    return tuple(found)


def _units(graph: OpGraph, operations: Operations) -> list[list[int]]:
    """Sets of ops that are one unit, in an order in which each reads earlier ones only."""
    index = {op.name: number for number, op in enumerate(graph.ops)}
    arcs = set()
    for one in operations.operations:
        for read in one.reads:
            source, target = index[operations.by_name[read].op], index[one.op]
            if source != target:
                arcs.add((source, target))
    for names in operations.bound_ops:
        first, *others = (index[name] for name in names)
        arcs |= {arc for other in others for arc in ((first, other), (other, first))}
    size = len(graph.ops)
    sources, targets = (np.array([arc[side] for arc in sorted(arcs)], np.int64) for side in (0, 1))
    matrix = coo_matrix((np.ones(len(sources)), (sources, targets)), shape=(size, size))
    number, unit_of = connected_components(matrix, directed=True, connection="strong")
    members: list[list[int]] = [[] for _ in range(number)]
    for op in range(size):
        members[unit_of[op]].append(op)
    return [members[unit] for unit in _ordered(members, {(unit_of[a], unit_of[b]) for a, b in arcs})]


def _ordered(members: Sequence[Sequence[int]], arcs: set[tuple[int, int]]) -> list[int]:
    """Units after those that they read; of several, the one with the first op."""
    after: list[list[int]] = [[] for _ in members]
    missing = [0] * len(members)
    for source, target in arcs:
        if source != target:
            after[source].append(target)
            missing[target] += 1
    heap = [(unit[0], number) for number, unit in enumerate(members) if not missing[number]]
    heapq.heapify(heap)
    found = []
    while heap:
        _, number = heapq.heappop(heap)
        found.append(number)
        for other in after[number]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(heap, (members[other][0], other))
    return found


def _passing_bytes(graph: OpGraph, operations: Operations, units: Sequence[Sequence[int]]) -> list[float]:
    """Per sample, after each unit: tensors of it and of earlier ones that later ones read, each once."""
    place = {graph.ops[op].name: number for number, unit in enumerate(units) for op in unit}
    last = {one.name: place[one.op] for one in operations.operations}
    for one in operations.operations:
        for read in one.reads:
            last[read] = max(last[read], place[one.op])
    change = np.zeros(len(units) + 1)
    for one in operations.operations:
        change[place[one.op]] += one.bytes_per_sample
        change[last[one.name]] -= one.bytes_per_sample
    return [max(float(value), 0.0) for value in np.cumsum(change)[:-1]]


def _work(graph: OpGraph, costs: Costs, global_batch: int, units: Sequence[Sequence[int]]) -> Floats:
    """Of each unit: the mean of its shares of the time on an average device and of the parameters."""
    size = len(costs.cluster.devices)
    forward_s, backward_s = costs.passes(np.full(size, max(global_batch / size, 1.0)))
    seconds: Floats = (forward_s + backward_s).mean(axis=0)
    held = np.array([op.param_bytes for op in graph.ops], np.float64)
    shares = seconds / (seconds.sum() or 1.0) + held / (held.sum() or 1.0)
    return np.array([shares[list(unit)].sum() / 2 for unit in units])


def _best_cuts(work: Floats, passing: Sequence[float], most: int) -> list[int]:
    """The first unit of every group but the first."""
    ends = np.concatenate([[0.0], np.cumsum(work)])
    cut = np.array(passing) / (np.mean(passing) or 1.0)
    size = len(work)
    group = (ends[None, :] - ends[:, None]) ** 2 * most  # of units from .. to
    group[np.tril_indices(size + 1)] = np.inf
    best, chosen = group[0].copy(), []
    for _ in range(most - 1):
        reached = best + np.concatenate([[np.inf], cut])
        reached[size] = np.inf
        table = reached[:, None] + group
        chosen.append(table.argmin(axis=0))
        best = table.min(axis=0)
    found, end = [], size
    for sources in reversed(chosen):
        end = int(sources[end])
        found.append(end)
    return found[::-1]
