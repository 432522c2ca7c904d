"""A model as a graph of tensor operations that can be cut anywhere and run in pieces, by any number of samples.

`torch.export` (non-strict, so that it follows what Python does, with the number of samples left open) gives operations on
tensors. Where it fails, `torch.fx.symbolic_trace` gives calls of modules and functions; where that fails too, and the model is
a chain of modules, the chain does. Nothing of the model is changed: a trace reads its parameters and buffers by name.

A tensor may pass from one device to another if its first dimension is the samples, or a fixed number of rows of each: then
ranks with other shares of the batch take other rows of it. What is no such tensor (sizes, tuples, results of routing, what is
written in place) stays with its readers: `bound` lists operations that must run on the same devices. What depends on no input
(a causal mask, an embedded position) is computed wherever it is read.
"""

from __future__ import annotations

import inspect
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from autotune.workloads.capture import LOSS
from autotune.workloads.dataflow import Call, attributes_kept, calls_of, owner_finder, reason, symbolically_traced
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import OpGraph
from autotune.workloads.tensor_graph.operations import Operation, Operations, Sets

_FEW, _MANY = 5, 7
"""Samples of two traces or runs; primes, so that no dimension of a model is a multiple of them by accident."""
_SYMBOLIC = torch.SymInt | torch.SymFloat | torch.SymBool
_INPUTS = ("placeholder", "get_attr")


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A trace. Nodes are named as in `module.graph`."""

    module: fx.GraphModule
    how: str
    """"export", "fx" or "modules"."""
    note: str
    """Why a better method failed."""
    owners: Mapping[str, str]
    """The op of the model's graph that an operation belongs to. The output belongs to the loss."""
    rows: Mapping[str, int]
    """Tensors that may pass between devices: their rows per sample."""
    row_bytes: Mapping[str, float] = field(default_factory=dict)
    """Of those: bytes of a row."""
    sizes: Mapping[str, Callable[[int], Any]] = field(default_factory=dict)
    """Numbers that follow from the number of samples."""
    exact: frozenset[str] = frozenset()
    """Tensors of whole numbers or masks, which have no gradient."""
    keywords: tuple[str, ...] = ()
    """Of the traced call of the model, in its order."""

    @cached_property
    def nodes(self) -> dict[str, fx.Node]:
        """Operations in the order in which they run, the output last; without inputs, parameters and checks of a trace."""
        return {node.name: node for node in self.module.graph.nodes if _is_operation(node)}

    @cached_property
    def free(self) -> frozenset[str]:
        """Operations that depend on no input and write to nothing, or that are numbers: computed wherever they are read."""
        found: set[str] = set(self.sizes)
        for name, node in self.nodes.items():
            read = [one for one in node.all_input_nodes if one.op != "get_attr"]
            if node.op != "output" and not written(node) and all(one.name in found for one in read):
                found.add(name)
        return frozenset(found)

    @cached_property
    def operations(self) -> Operations:
        """What is placed: all but what is free."""
        kept = [node for name, node in self.nodes.items() if name not in self.free]
        return Operations(
            operations=tuple(self._operation(node) for node in kept),
            bound=tuple(frozenset(names) for names in self.bound_nodes()),
        )

    def _operation(self, node: fx.Node) -> Operation:
        read = self._read(node)
        return Operation(
            name=node.name,
            op=self.owners[node.name],
            reads=tuple(name for name in read if name in self.nodes),
            inputs=tuple(name for name in read if name not in self.nodes),
            bytes_per_sample=self.rows.get(node.name, 0) * self.row_bytes.get(node.name, 0.0),
            has_gradient=node.name not in self.exact,
            is_output=node.op == "output",
        )

    def _read(self, node: fx.Node) -> list[str]:
        """Other operations and inputs of the model that an operation reads, each once, also through what is repeated."""
        found: dict[str, None] = {}
        left = list(reversed(node.all_input_nodes))
        while left:
            one = left.pop()
            if one.name in self.sizes or one.op == "get_attr":
                continue
            if one.name in self.free:
                left += reversed(one.all_input_nodes)
            else:
                found[one.name] = None
        return list(found)

    def bound_nodes(self) -> list[set[str]]:
        """Operations that must run on the same devices: writers of a tensor with its readers, and makers of what cannot pass."""
        sets, homes = Sets(), self.nodes.keys() - self.free
        for name in self.nodes:
            if name not in homes:
                continue
            node = self.nodes[name]
            if name not in self.rows and node.op != "output":
                sets.join([name, *self._readers(node)])
            for target in written(node):
                near = [one for one in (target.name, *self._readers(target)) if one in homes]
                sets.join([name, *near])
        self._close(sets)
        return [found for found in sets.all() if len(found) > 1]

    def _close(self, sets: Sets) -> None:
        """What lies on a path from one member of a set to another joins it, so that a set runs at once."""
        changed = True
        while changed:
            changed = False
            for found in [one for one in sets.all() if len(one) > 1]:
                after, before = self._reached(found, forward=True), self._reached(found, forward=False)
                if between := (after & before) - found:
                    sets.join([*found, *between])
                    changed = True
                    break

    def _reached(self, names: set[str], *, forward: bool) -> set[str]:
        """What depends on some operations, or what they depend on, themselves included."""
        reached = set(names)
        for name in self.nodes if forward else reversed(self.nodes):
            node = self.nodes[name]
            near = node.all_input_nodes if forward else node.users
            if name not in self.free and any(one.name in reached for one in self._through(near, forward=forward)):
                reached.add(name)
        return reached

    def _through(self, near: Iterable[fx.Node], *, forward: bool) -> Iterator[fx.Node]:
        """Neighbours of an operation; what is repeated stands for its own neighbours."""
        for node in near:
            if node.name in self.free and node.name not in self.sizes:
                yield from self._through(node.all_input_nodes if forward else node.users, forward=forward)
            else:
                yield node

    def _readers(self, node: fx.Node) -> list[str]:
        return [user.name for user in self._through(node.users, forward=False) if user.name in self.nodes]


def trace_model(
    graph: OpGraph, model: nn.Module, run: Callable[[int], Tensor], chain: Sequence[nn.Module] = ()
) -> Traced:
    """`run(n)` computes the loss of n samples with `model`. `chain`: modules that are the model when called one after another."""
    calls = {count: calls_of(model, run, count) for count in (_FEW, _MANY)}
    if len(calls[_FEW]) != 1:
        raise SpecError(
            f"the loss calls the model {len(calls[_FEW])} times: a model is placed in pieces only where it is called once per pass"
        )
    (few,), (many,) = calls[_FEW], calls[_MANY]
    owner_of, reasons = owner_finder(graph, model), list[str]()
    for how, trace in _TRACERS.items():
        try:
            with warnings.catch_warnings(), attributes_kept(model):
                warnings.simplefilter("ignore")
                module, shapes = trace(model, few, many, chain)
        except Exception as error:  # noqa: BLE001 - a tracer may fail on a user's model in any way
            reasons.append(f"{how}: {reason(error)}")
            continue
        owners = {node.name: LOSS if node.op == "output" else owner_of(node) for node in module.graph.nodes}
        return Traced(
            module=module,
            how=how,
            note="; ".join(reasons),
            owners=owners,
            rows=shapes.rows,
            row_bytes=shapes.row_bytes,
            sizes=shapes.sizes,
            exact=frozenset(shapes.exact),
            keywords=tuple(few.kwargs),
        )
    raise SpecError(f"the model cannot be traced ({'; '.join(reasons)}): give the workload stages(model)")


@dataclass(kw_only=True, slots=True)
class _Shapes:
    rows: dict[str, int] = field(default_factory=dict)
    row_bytes: dict[str, float] = field(default_factory=dict)
    sizes: dict[str, Callable[[int], Any]] = field(default_factory=dict)
    exact: set[str] = field(default_factory=set)

    def note(self, name: str, few: tuple[int, ...] | None, many: tuple[int, ...] | None, value_bytes: int) -> None:
        """The rows per sample of a tensor with these shapes for few and many samples, if it has such."""
        if not few or not many or few[1:] != many[1:] or few[0] % _FEW or few[0] == many[0]:
            return
        if many[0] * _FEW == few[0] * _MANY:
            self.rows[name], self.row_bytes[name] = few[0] // _FEW, float(math.prod(few[1:]) * value_bytes)


_Trace = Callable[[nn.Module, Call, Call, Sequence[nn.Module]], tuple[fx.GraphModule, _Shapes]]


def _by_export(model: nn.Module, few: Call, many: Call, _chain: Sequence[nn.Module]) -> tuple[fx.GraphModule, _Shapes]:
    def open_dimension(value: Any, more: Any) -> Any:
        has_samples = isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] != more.shape[0]
        return {0: torch.export.Dim.DYNAMIC} if has_samples else None

    shapes = tree_map(open_dimension, (few.args, dict(few.kwargs)), (many.args, dict(many.kwargs)))
    signature = inspect.signature(model.forward)
    dynamic = dict(signature.bind(*shapes[0], **shapes[1]).arguments)
    program = torch.export.export(model, few.args, dict(few.kwargs), dynamic_shapes=dynamic, strict=False)
    module = program.module()
    assert isinstance(module, fx.GraphModule)
    _forget_parameters(module)
    found = _Shapes()
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            found.exact |= set() if value.is_floating_point() else {node.name}
            few_shape, many_shape = (_shape_at(value.shape, count) for count in (_FEW, _MANY))
            found.note(node.name, few_shape, many_shape, value.dtype.itemsize)
        elif isinstance(value, _SYMBOLIC) and (size := _as_function(value)) is not None:
            found.sizes[node.name] = size
    return module, found


def _forget_parameters(module: nn.Module) -> None:
    """A trace reads those of whichever model it is run with, and keeps no memory for the one it was made from."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            shape = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            part.register_parameter(name, shape)


def _symbols(value: Any) -> set[Any]:
    return set(value.node.expr.free_symbols) if hasattr(value, "node") else set()


def _shape_at(shape: Sequence[Any], num_samples: int) -> tuple[int, ...] | None:
    """A shape for so many samples; None where it depends on something else."""
    found = []
    for size in shape:
        if isinstance(size, int) and not _symbols(size):
            found.append(size)
        elif (at := _as_function(size)) is not None:
            found.append(int(at(num_samples)))
        else:
            return None
    return tuple(found)


def _as_function(value: Any) -> Callable[[int], Any] | None:
    """A number of a trace by the number of samples; None where it depends on the values of tensors."""
    import sympy  # type: ignore[import-untyped]  # noqa: PLC0415 - torch loads it for every trace

    expression, symbols = value.node.expr, _symbols(value)
    if any(not str(symbol).startswith("s") for symbol in symbols) or len(symbols) > 1:
        return None
    (symbol,) = symbols or {sympy.Symbol("s")}
    function = sympy.lambdify([symbol], expression, modules="math")

    def size(num_samples: int) -> Any:  # a function of a module, as graphs want them
        return function(num_samples)

    return size


def _by_fx(model: nn.Module, few: Call, many: Call, _chain: Sequence[nn.Module]) -> tuple[fx.GraphModule, _Shapes]:
    module = symbolically_traced(model, few)
    return module, _run_twice(module, few.bound(model), many.bound(model))


def _by_modules(model: nn.Module, few: Call, many: Call, chain: Sequence[nn.Module]) -> tuple[fx.GraphModule, _Shapes]:
    if not chain and not isinstance(model, nn.Sequential):
        raise SpecError("the model is no nn.Sequential, and its workload has no stages(model)")
    graph, names = fx.Graph(), {id(module): name for name, module in model.named_modules()}
    value = graph.placeholder("input")
    for one in chain or list(model):  # type: ignore[call-overload]
        value = graph.call_module(names[id(one)], (value,))
        value.meta["nn_module_stack"] = {names[id(one)]: (names[id(one)], type(one))}
    graph.output(value)
    module = fx.GraphModule(model, graph)
    return module, _run_twice(module, few.args[:1], many.args[:1])


def _run_twice(module: fx.GraphModule, few: Sequence[Any], many: Sequence[Any]) -> _Shapes:
    """Compares the shapes of two runs on copies of the samples. Buffers that a run changes are restored."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    runs = []
    for given in (few, many):
        shapes = _ShapesOf(module)
        with torch.no_grad():
            shapes.run(*given, enable_io_processing=False)
        runs.append(shapes)
    for name, buffer in module.named_buffers():
        buffer.copy_(before[name])
    found = _Shapes()
    for name, shape in runs[0].found.items():
        found.note(name, shape, runs[1].found[name], runs[0].value_bytes.get(name, 0))
    found.exact = runs[0].exact
    return found


class _ShapesOf(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[str, tuple[int, ...] | None] = {}
        self.exact: set[str] = set()
        self.value_bytes: dict[str, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        self.found[n.name] = tuple(result.shape) if isinstance(result, Tensor) else None
        if isinstance(result, Tensor):
            self.value_bytes[n.name] = result.dtype.itemsize
            self.exact |= set() if result.is_floating_point() else {n.name}
        return result


_TRACERS: dict[str, _Trace] = {"export": _by_export, "fx": _by_fx, "modules": _by_modules}
"""The better first."""


def written(node: fx.Node) -> list[fx.Node]:
    """The tensors that an operation writes to."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        names = [
            (place, one.name)
            for place, one in enumerate(schema.arguments)
            if one.alias_info and one.alias_info.is_write
        ]
        values = [node.args[place] if place < len(node.args) else node.kwargs.get(name) for place, name in names]
    elif (
        (node.op == "call_method" and str(node.target).endswith("_") and not str(node.target).endswith("__"))
        or node.target in (operator.setitem, operator.iadd, operator.imul, operator.isub, operator.itruediv)
        or node.kwargs.get("inplace")
    ):
        values = [node.args[0]]
    else:
        values = []
    return [value for value in values if isinstance(value, fx.Node)]


def _is_operation(node: fx.Node) -> bool:
    return node.op not in _INPUTS and node.target != "_guards_fn"
