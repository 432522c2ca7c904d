"""A segment of a traced model as a module: a copy of its operations, with the model's own parameters and buffers.

What depends on no input, and numbers that follow from the number of samples, are repeated in every segment that reads them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from autotune.workloads.tensor_graph.segments import Segment
from autotune.workloads.tensor_graph.traced import Traced


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
