"""The operations of a model as plain data: what each reads, and how many bytes its tensor has.

A trace (`autotune.workloads.tensor_graph.traced`) gives them for a model that can be run in pieces, and an op graph with edges for
one that can be predicted only. The runtime and the simulator cut the same operations into the same segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.workloads.errors import SpecError
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan.op_groups import PlacementPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operation, which makes one tensor."""

    name: str
    op: str
    """The op of the model's graph that it belongs to."""
    reads: tuple[str, ...] = ()
    """Other operations, each once, all of them earlier ones."""
    inputs: tuple[str, ...] = ()
    """Inputs of the model that it reads."""
    bytes_per_sample: float = 0.0
    """Of its tensor."""
    has_gradient: bool = True
    """False for whole numbers and masks."""
    is_output: bool = False
    """Makes the model's output, from which the loss follows."""


@dataclass(frozen=True, kw_only=True)
class Operations:
    """In an order in which they run."""

    operations: tuple[Operation, ...]
    bound: tuple[frozenset[str], ...] = ()
    """Operations that run at once, on the same devices; each is in at most one set."""

    @cached_property
    def by_name(self) -> dict[str, Operation]:
        return {one.name: one for one in self.operations}

    @cached_property
    def bound_ops(self) -> tuple[frozenset[str], ...]:
        """Ops of the model that must run on the same devices, each in at most one set."""
        sets = Sets()
        for names in self.bound:
            sets.join([self.by_name[name].op for name in names])
        return tuple(frozenset(found) for found in sets.all() if len(found) > 1)

    def groups_by_name(self, graph: OpGraph, placement: PlacementPlan) -> dict[str, int]:
        """The group of every op by its name; SpecError where ops that must stay together do not."""
        group_of = placement.group_of_op()
        if missing := [op.name for index, op in enumerate(graph.ops) if index not in group_of]:
            raise SpecError(f"op {missing[0]!r} is in none of the plan's groups: every op is in one")
        if more := [index for index in group_of if index >= len(graph.ops)]:
            raise SpecError(f"the plan's groups name op {more[0]} but the model has {len(graph.ops)} ops")
        by_name = {op.name: group_of[index] for index, op in enumerate(graph.ops)}
        for together in self.bound_ops:
            if len({by_name[name] for name in together}) > 1:
                raise SpecError(
                    f"ops {', '.join(sorted(together))} exchange what cannot be sent: put them into one group"
                )
        return by_name


class Sets:
    """Sets of names that grow together."""

    def __init__(self) -> None:
        self._set_of: dict[str, set[str]] = {}

    def join(self, names: Sequence[str]) -> None:
        together = {name for one in names for name in self._set_of.get(one, {one})}
        self._set_of |= dict.fromkeys(together, together)

    def all(self) -> list[set[str]]:
        return list({id(found): found for found in self._set_of.values()}.values())


def operations_of(graph: OpGraph) -> Operations:
    """One operation for each op of a graph, by its edges; without edges a chain. Ops that read each other are bound."""
    place = {op.name: index for index, op in enumerate(graph.ops)}
    passed = [(edge.source, edge.target, edge.bytes_per_sample) for edge in graph.edges if edge.source in place]
    if not graph.edges:
        passed = [(a.name, b.name, a.output_bytes_per_sample) for a, b in zip(graph.ops, graph.ops[1:], strict=False)]
    reads: dict[str, dict[str, None]] = {op.name: {} for op in graph.ops}
    size, sets = dict.fromkeys(place, 0.0), Sets()
    for source, target, num_bytes in passed:
        size[source] = max(size[source], num_bytes)
        if place[source] < place[target]:
            reads[target][source] = None
        elif source != target:  # a module that computes between its children: they stay together with all between them
            sets.join([op.name for op in graph.ops[place[target] : place[source] + 1]])
    operations = (
        Operation(
            name=op.name,
            op=op.name,
            reads=tuple(reads[op.name]),
            inputs=() if reads[op.name] else ("input",),
            bytes_per_sample=size[op.name],
            is_output=index == len(graph.ops) - 1,
        )
        for index, op in enumerate(graph.ops)
    )
    return Operations(operations=tuple(operations), bound=_frozen(sets.all()))


def _frozen(sets: Iterable[set[str]]) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(found) for found in sets if len(found) > 1)
