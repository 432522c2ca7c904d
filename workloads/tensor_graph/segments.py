"""Operations cut into segments: those of a group of ops that run without waiting for another group.

A group of ops need not be one piece: a residual block's addition runs after what the block calls. The level of an operation
is the number of changes of group on the longest path to it. Operations of one group and level are a segment. A segment reads
segments of lower levels only, so the order by level is an order of execution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.workloads.graph import OpGraph
from autotune.workloads.tensor_graph.operations import Operations


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Operations that one set of ranks runs at once."""

    group: int
    level: int
    nodes: tuple[str, ...]
    reads: tuple[str, ...] = ()
    """Tensors of other segments, by the name of their operation."""
    inputs: tuple[str, ...] = ()
    """Inputs of the model that it reads."""
    gives: tuple[str, ...] = ()
    """Its tensors that other segments read."""
    has_output: bool = False
    """Whether it makes the model's output, from which the loss follows."""


def cut_segments(operations: Operations, group_of_op: Mapping[str, int]) -> tuple[Segment, ...]:
    """In an order of execution. `group_of_op`: of every op of the model's graph; ops that are bound share a group."""
    groups = {one.name: group_of_op[one.op] for one in operations.operations}
    levels = _levels(operations, groups)
    members: dict[tuple[int, int], list[str]] = {}
    for one in operations.operations:
        members.setdefault((levels[one.name], groups[one.name]), []).append(one.name)
    segment_of = {name: key for key, names in members.items() for name in names}
    by_name = operations.by_name
    read, inputs = (
        {
            key: dict.fromkeys(found for name in names for found in getattr(by_name[name], what))
            for key, names in members.items()
        }
        for what in ("reads", "inputs")
    )
    given = {name for key, names in read.items() for name in names if segment_of[name] != key}
    return tuple(
        Segment(
            group=key[1],
            level=key[0],
            nodes=tuple(names),
            reads=tuple(name for name in read[key] if segment_of[name] != key),
            inputs=tuple(inputs[key]),
            gives=tuple(name for name in names if name in given),
            has_output=any(by_name[name].is_output for name in names),
        )
        for key, names in sorted(members.items())
    )


def _levels(operations: Operations, groups: Mapping[str, int]) -> dict[str, int]:
    """Bound operations have one level: the highest of theirs. Operations that read nothing join their op."""
    together = {name: index for index, names in enumerate(operations.bound) for name in names}
    for one in operations.operations:
        if not one.reads and not one.inputs and not one.is_output and one.name not in together:
            first = next(
                (other.name for other in operations.operations if other.op == one.op and other is not one), None
            )
            if first is not None:
                together[one.name] = together.setdefault(first, len(together) + len(groups))
    levels: dict[str, int] = {}
    least: dict[int, int] = {}
    changed = True
    while changed:  # bound sets have no path out of themselves and back, so levels end
        changed = False
        for one in operations.operations:
            level = max(
                (levels[read] + (groups[read] != groups[one.name]) for read in one.reads if read in levels), default=0
            )
            mine = together.get(one.name)
            level = max(level, levels.get(one.name, 0), 0 if mine is None else least.get(mine, 0))
            if mine is not None:
                least[mine] = level
            if levels.get(one.name) != level:
                levels[one.name], changed = level, True
    return levels


def segment_of_ops(graph: OpGraph, operations: Operations, segments: Sequence[Segment]) -> list[int]:
    """The segment that each op of the graph counts for: the one with most of its operations, the first of several."""
    counts: dict[str, Counter[int]] = {}
    for number, segment in enumerate(segments):
        for name in segment.nodes:
            counts.setdefault(operations.by_name[name].op, Counter())[number] += 1
    return [counts[op.name].most_common(1)[0][0] if op.name in counts else 0 for op in graph.ops]
