"""A traced model cut into segments: the operations of a group of ops that run without waiting for another group.

A group of ops need not be one piece: a residual block's addition runs after what the block calls. The level of an operation
is the number of changes of group on the longest path to it. Operations of one group and level are a segment. A segment reads
segments of lower levels only, so the order by level is an order of execution. What depends on no input, and numbers that
follow from the number of samples, are repeated in every segment that reads them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from autotune.workloads.tensor_graph.traced import Traced


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


def cut_segments(traced: Traced, group_of_op: Mapping[str, int]) -> tuple[Segment, ...]:
    """In an order of execution. `group_of_op`: of every op of the model's graph; ops that are bound share a group."""
    groups = {name: group_of_op[traced.owners[name]] for name in traced.nodes}
    levels = _levels(traced, groups)
    members: dict[tuple[int, int], list[str]] = {}
    for name in traced.nodes:
        if name not in traced.free:
            members.setdefault((levels[name], groups[name]), []).append(name)
    segment_of = {name: key for key, names in members.items() for name in names}
    read = {key: _reads(traced, names) for key, names in members.items()}
    given = {
        name: None for key, names in read.items() for name in names if name in segment_of and segment_of[name] != key
    }
    return tuple(
        Segment(
            group=group,
            level=level,
            nodes=tuple(names),
            reads=tuple(name for name in read[level, group] if segment_of.get(name, (level, group)) != (level, group)),
            inputs=tuple(name for name in read[level, group] if name not in traced.nodes),
            gives=tuple(name for name in names if name in given),
            has_output=any(traced.nodes[name].op == "output" for name in names),
        )
        for (level, group), names in sorted(members.items())
    )


def _levels(traced: Traced, groups: Mapping[str, int]) -> dict[str, int]:
    """Bound operations have one level: the highest of theirs. Writers of buffers that read nothing join their op."""
    together = {name: index for index, names in enumerate(traced.bound_nodes()) for name in names}
    for name, node in traced.nodes.items():
        if name not in traced.free and not _reads(traced, [name]) and node.op != "output":
            near = (one for one in traced.nodes if one != name and traced.owners[one] == traced.owners[name])
            first = next((one for one in near if one not in traced.free), None)
            if first is not None:
                together[name] = together.setdefault(first, len(together) + len(traced.nodes))
    levels: dict[str, int] = {}
    least: dict[int, int] = {}
    changed = True
    while changed:  # bound sets have no path out of themselves and back, so levels end
        changed = False
        for name in traced.nodes:
            if name in traced.free:
                continue
            before = [one for one in _reads(traced, [name]) if one in levels]
            level = max((levels[one] + (groups[one] != groups[name]) for one in before), default=0)
            mine = together.get(name)
            level = max(level, levels.get(name, 0), 0 if mine is None else least.get(mine, 0))
            if mine is not None:
                least[mine] = level
            if levels.get(name) != level:
                levels[name], changed = level, True
    return levels


def _reads(traced: Traced, names: Sequence[str]) -> list[str]:
    """What operations read, each once: other operations and the model's inputs, also through what is repeated."""
    found: dict[str, None] = {}
    left = [node for name in reversed(names) for node in reversed(traced.nodes[name].all_input_nodes)]
    while left:
        node = left.pop()
        if node.name in traced.sizes or node.op == "get_attr":
            continue
        if node.name in traced.free:
            left += reversed(node.all_input_nodes)
        else:
            found[node.name] = None
    return list(found)


def segment_module(traced: Traced, segment: Segment, model: nn.Module) -> fx.GraphModule:
    """Computes `gives`, or the model's output, from `reads` and then `inputs`. Its parameters and buffers are the model's own."""
    return _Copy(traced, segment, model).module()


class _Copy:
    """Copies operations into a graph of their own."""

    def __init__(self, traced: Traced, segment: Segment, model: nn.Module) -> None:
        self._traced, self._segment, self._model = traced, segment, model
        self._root, self._graph = nn.Module(), fx.Graph()
        self._made: dict[str, fx.Node] = {}
        self._num_samples: fx.Node | None = None

    def module(self) -> fx.GraphModule:
        segment, traced = self._segment, self._traced
        for name in (*segment.reads, *segment.inputs):
            self._made[name] = self._graph.placeholder(name)
        for name in segment.nodes:
            node = traced.nodes[name]
            if node.op != "output":
                self._copy(node)
        if segment.has_output:
            (output,) = (node for node in traced.nodes.values() if node.op == "output")
            self._graph.output(fx.map_arg(output.args[0], self._copy))
        else:
            self._graph.output(tuple(self._made[name] for name in segment.gives))
        return fx.GraphModule(self._root, self._graph)

    def _copy(self, node: fx.Node) -> fx.Node:
        if node.name not in self._made:
            if node.name in self._traced.sizes:
                made = self._graph.call_function(self._traced.sizes[node.name], (self._count(),))
            elif node.op in ("get_attr", "call_module"):
                target = self._own(str(node.target))
                args = fx.map_arg(node.args, self._copy)
                made = self._graph.create_node(node.op, target, args, fx.map_arg(node.kwargs, self._copy))
            else:
                made = self._graph.node_copy(node, self._copy)
            self._made[node.name] = made
        return self._made[node.name]

    def _count(self) -> fx.Node:
        """The number of samples, from the rows of the first tensor that has such."""
        if self._num_samples is None:
            rows = self._traced.rows
            name = next(name for name in (*self._segment.reads, *self._segment.inputs) if name in rows)
            self._num_samples = self._graph.call_function(num_samples, (self._made[name], rows[name]))
        return self._num_samples

    def _own(self, target: str) -> str:
        """A parameter, buffer, module or constant of the model, as an attribute of the segment."""
        name = "at_" + target.replace(".", "_")
        if not hasattr(self._root, name):
            setattr(self._root, name, _attribute(self._model, self._traced.module, target))
        return name


def num_samples(tensor: Tensor, rows: int) -> int:
    """Of a tensor with so many rows per sample."""
    return int(tensor.shape[0]) // rows


def _attribute(model: nn.Module, trace: nn.Module, target: str) -> Any:
    """The model's own, or a constant that the trace has found."""
    find: Callable[[Any], Any] = operator.attrgetter(target)
    try:
        return find(model)
    except AttributeError:
        return find(trace)


def output_of(traced: Traced, leaves: Any) -> Any:
    """The model's output as its forward returns it, from what the segment with the output returns."""
    return traced.module.graph.process_outputs(leaves)


def leaves_of(traced: Traced, args: tuple[Any, ...], kwargs: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """The model's inputs by the name of the trace, from the arguments of a call."""
    placeholders = [node.name for node in traced.module.graph.nodes if node.op == "placeholder"]
    values: Sequence[Any]
    if traced.how == "export":
        values = tree_leaves((args, {name: kwargs[name] for name in traced.keywords}))
    elif traced.how == "fx":
        from autotune.workloads.dataflow import Call  # noqa: PLC0415

        values = Call(args, kwargs).bound(model)
    else:
        values = args
    return dict(zip(placeholders, values, strict=False))
