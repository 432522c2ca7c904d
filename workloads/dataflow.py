"""The edges of an OpGraph: which op reads how many bytes of which other op's tensors in the forward pass.

The model is traced, every traced node belongs to the innermost module of the graph that it ran in, and then the trace
is interpreted once with (op that made it, size) in place of tensors. A tensor that one op makes and another reads is an edge,
or part of one. Three methods, each tried where the one before fails:
- "export": torch.export, which follows tensors through any Python that does not branch on their values;
- "fx": torch.fx.symbolic_trace and one real pass for the shapes; torch's own composite layers stay one op there;
- "modules": no tracing, the ops as a chain in the order they ran.
Modules that only call others or return their input (Sequential, Identity) make no tensor and have no edges. A module
that computes between its children (a residual block) is read by some and reads from others, so edges may form cycles.

Left out: inputs and parameters (no op makes them), numbers taken from tensors, and what the loss does with the outputs;
precision changed by the loss around the model (autocast) is not seen. Sizes are of one batch divided by its samples, so a
tensor that does not grow with the batch counts for a quarter of its size per sample.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from autotune.workloads.capture import LOSS, MODEL, tensor_bytes
from autotune.workloads.graph import Edge, Op, OpGraph

_NUM_SAMPLES = 4
_LONGEST_REASON = 200
_INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
"""The form of `with torch.no_grad()` and `with torch.autocast()` in an exported graph: a call of a graph within the graph."""


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of the model."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def bound(self, model: nn.Module) -> list[Any]:
        """One value for each parameter of the model's forward, with its defaults."""
        bound = inspect.signature(model.forward).bind(*self.args, **self.kwargs)
        bound.apply_defaults()
        return list(bound.arguments.values())


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """One tensor of the trace, equal to itself only."""

    op: str
    num_bytes: int


_Reads = dict[tuple[_Made, str], None]
"""Which op reads which tensor: a set that keeps its order."""


def with_edges(graph: OpGraph, model: nn.Module, run: Callable[[int], Tensor]) -> OpGraph:
    """`graph` as `capture(model, run)` gave it, with its edges. Calls `run` once to record the model's arguments."""
    calls = calls_of(model, run, _NUM_SAMPLES)
    reasons = [] if calls else ["the loss never calls the model as a whole"]
    for level, trace in _TRACERS.items() if calls else ():
        try:
            edges = _traced_edges(graph, model, calls, trace)
        except Exception as error:  # noqa: BLE001 - a tracer may fail on a user's model in any way
            reasons.append(f"{level}: {reason(error)}")
        else:
            return replace(graph, edges=edges, edges_from=level, edges_note="; ".join(reasons))
    return replace(graph, edges=_chain(graph), edges_from="modules", edges_note="; ".join(reasons))


def calls_of(model: nn.Module, run: Callable[[int], Tensor], num_samples: int) -> list[Call]:
    """How the loss of so many samples calls the model."""
    calls: list[Call] = []

    def note(_model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        args, kwargs = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        calls.append(Call(args, kwargs))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        run(num_samples)
    finally:
        handle.remove()
    return calls


def reason(error: Exception) -> str:
    """One short line."""
    message = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {message}"[:_LONGEST_REASON].rstrip(": ")


# --- no trace ----------------------------------------------------------------------------------------------------------


def _chain(graph: OpGraph) -> tuple[Edge, ...]:
    """Every op passes its output to the next; modules that only call their children are left out."""
    ops = [op for op in graph.ops if _does_work(op) or not _has_children(op, graph.ops)]
    return tuple(
        Edge(source=op.name, target=following.name, bytes_per_sample=op.output_bytes_per_sample)
        for op, following in pairwise(ops)
    )


def _does_work(op: Op) -> bool:
    return op.flops_per_sample + op.bytes_per_sample + op.fixed_bytes > 0


def _has_children(op: Op, ops: Iterable[Op]) -> bool:
    if op.name == MODEL:
        return any(other.name not in (MODEL, LOSS) for other in ops)
    return any(other.name.startswith(f"{op.name}.") for other in ops)


# --- traces ------------------------------------------------------------------------------------------------------------


def _traced_edges(
    graph: OpGraph, model: nn.Module, calls: Iterable[Call], trace: Callable[[nn.Module, Call], fx.GraphModule]
) -> tuple[Edge, ...]:
    reads: _Reads = {}
    owner_of = owner_finder(graph, model)
    for call in calls:
        with warnings.catch_warnings(), attributes_kept(model):
            warnings.simplefilter("ignore")
            traced = trace(model, call)
        num_inputs = sum(node.op == "placeholder" for node in traced.graph.nodes)
        results = _Flow(traced, owner_of, reads).run(*[None] * num_inputs, enable_io_processing=False)
        reads |= {(leaf, LOSS): None for leaf in tree_leaves(results) if isinstance(leaf, _Made)}
    totals = Counter[tuple[str, str]]()
    for made, target in reads:
        totals[made.op, target] += made.num_bytes
    return tuple(
        Edge(source=source, target=target, bytes_per_sample=num_bytes / _NUM_SAMPLES)
        for (source, target), num_bytes in totals.items()
    )


def _exported(model: nn.Module, call: Call) -> fx.GraphModule:
    traced: fx.GraphModule = torch.export.export(model, call.args, dict(call.kwargs)).graph_module
    return traced


def symbolically_traced(model: nn.Module, call: Call) -> fx.GraphModule:
    """By torch.fx, with the shapes of that call."""
    bound = inspect.signature(model.forward).bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    # Arguments that forward may branch on are traced as they are; it cannot branch on a tensor's proxy.
    plain = {
        name: value for name, value in bound.arguments.items() if value is None or isinstance(value, int | float | str)
    }
    traced = fx.symbolic_trace(model, concrete_args=plain)
    with torch.no_grad():
        _Shapes(traced).run(*bound.arguments.values(), enable_io_processing=False)
    return traced


_TRACERS = {"export": _exported, "fx": symbolically_traced}
"""The better first."""


class _Shapes(fx.Interpreter):
    """Runs a graph and stores at every node its result, without data, as export does."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["val"] = tree_map_only(Tensor, lambda tensor: tensor.detach().to("meta"), result)
        return result


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[None]:
    """Forward may keep a tensor in an attribute; while tracing, that would be a proxy."""
    before = [(module, dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes in before:
            vars(module).clear()
            vars(module).update(attributes)


def owner_finder(graph: OpGraph, model: nn.Module) -> Callable[[fx.Node], str]:
    """The op that a node of a trace belongs to: the innermost module around it that is one, by the name that it has there."""
    ops = {op.name for op in graph.ops}
    first_name = {module: name for name, module in model.named_modules()}
    names = {path: first_name[module] for path, module in model.named_modules(remove_duplicate=False)}

    def owner_of(node: fx.Node) -> str:
        modules = (node.meta.get("nn_module_stack") or {}).values()
        around = (names.get(path.partition("@")[0]) for path, _kind in reversed(modules))  # "@": a later call of it
        return next((name for name in around if name in ops), MODEL)

    return owner_of


class _Flow(fx.Interpreter):
    """Runs a trace on _Made in place of tensors, and on None in place of inputs and numbers."""

    def __init__(self, traced: fx.GraphModule, owner_of: Callable[[fx.Node], str], reads: _Reads) -> None:
        super().__init__(traced)
        self._owner_of, self._reads = owner_of, reads

    def run_node(self, n: fx.Node) -> Any:
        if n.op in ("placeholder", "get_attr", "output"):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if n.target in (operator.getitem, getattr) and not isinstance(args[0], _Made):
            return None if args[0] is None else n.target(*args)  # one of several results
        if getattr(n.target, "__name__", "") in _INLINED:
            inner = next(index for index, value in enumerate(args) if isinstance(value, fx.GraphModule))
            inputs = args[inner + 1 :]
            return _Flow(args[inner], self._owner_of, self._reads).run(*inputs, enable_io_processing=False)
        result = n.meta.get("val")
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            return None
        op = self._owner_of(n)
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, _Made) and leaf.op != op]
        self._reads |= {(made, op): None for made in read}
        return tree_map_only(Tensor, lambda tensor: _Made(op, tensor_bytes(tensor)), result)
