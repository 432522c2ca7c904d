"""A torch model as an OpGraph: run it forward on two small batches and count, per module, FLOPs and bytes.

Every aten op is counted for the innermost module that was running (functional calls count for the module that makes
them), so costs are exclusive of children. Two batch sizes give fixed and per-sample parts. FLOPs come from torch's own
registry; bytes are inputs plus outputs of every op that is not a view. Backward is a multiple of forward: a matrix
product or convolution once more for each of its two operands that requires a gradient, anything else once. Tensors between
the ops take longer to find: see `autotune.workloads.dataflow`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from autotune.workloads.graph import Op, OpGraph, Parameter

LOSS = "(loss)"
"""Name of the op for everything outside every module: the loss."""
MODEL = "(model)"
"""Name of the op for what the model computes outside its children."""

COUNTED = _FEW, _MANY = 2, 4
"""Samples of the two passes."""
_MOST_FACTORS = 2


def capture(model: nn.Module, run: Callable[[int], Tensor]) -> OpGraph:
    """`run(n)` computes the loss of n samples (those of COUNTED) with `model`; everything that it runs is counted, so prepare
    the samples before. The model is not changed, except for buffers such as BatchNorm's.
    """
    few, many = _count(model, run, _FEW), _count(model, run, _MANY)
    parameters = _parameters(model, many.order)
    param_bytes = Counter[str]()
    for parameter in parameters:
        param_bytes[parameter.op] += parameter.num_bytes
    ops = tuple(_op(name, model, few[name], many[name], param_bytes[name]) for name in many.order)
    return OpGraph(ops=ops, saved_bytes_per_sample=sum(op.saved_bytes_per_sample for op in ops), parameters=parameters)


def tensor_bytes(tree: Any) -> int:
    """Of all tensors in a nested structure."""
    return sum(int(tensor.numel()) * tensor.element_size() for tensor in _tensors(tree))


class SavedTensorMeter:
    """Bytes that autograd holds for backward: the current sum and its peak, each storage counted once, parameters not.

    A storage counts for the op that ran (`running`) when it was first held, until it is freed: its address may then be
    that of another storage.
    """

    def __init__(self, model: nn.Module, running: Callable[[], str] = lambda: "") -> None:
        self.current_bytes = 0
        self.peak_bytes = 0
        self.bytes_by_op = Counter[str]()
        self._running = running
        self._first_op: dict[int, str] = {}
        self._own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        self._holders: dict[int, int] = {}

    @contextmanager
    def watch(self) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: _Held(tensor, self), lambda held: held.tensor):
            yield

    def hold(self, storage: int, num_bytes: int) -> None:
        self._holders[storage] = self._holders.get(storage, 0) + 1
        if self._holders[storage] == 1 and storage not in self._own:
            self.current_bytes += num_bytes
            self._first_op[storage] = self._running()
            self.bytes_by_op[self._first_op[storage]] += num_bytes
            self.peak_bytes = max(self.peak_bytes, self.current_bytes)

    def release(self, storage: int, num_bytes: int) -> None:
        self._holders[storage] -= 1
        if self._holders[storage] == 0:
            del self._holders[storage]
            if storage not in self._own:
                self.current_bytes -= num_bytes
                self.bytes_by_op[self._first_op.pop(storage)] -= num_bytes


class _Held:
    """A saved tensor; its memory is freed with it."""

    def __init__(self, tensor: Tensor, meter: SavedTensorMeter) -> None:
        self.tensor = tensor.detach()
        self._meter = meter
        storage = tensor.untyped_storage()
        self._key, self._num_bytes = storage.data_ptr(), storage.nbytes()
        meter.hold(self._key, self._num_bytes)

    def __del__(self) -> None:
        self._meter.release(self._key, self._num_bytes)


@dataclass(kw_only=True, slots=True)
class _Tally:
    """Counts of one module in one forward pass."""

    flops: float = 0.0
    num_bytes: float = 0.0
    num_calls: int = 0
    backward_flops: float = 0.0
    needs_backward: bool = False
    saved_bytes: int = 0
    output_bytes: int = 0


@dataclass(kw_only=True, slots=True)
class _Counts:
    tallies: dict[str, _Tally] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> _Tally:
        return self.tallies.setdefault(name, _Tally())


def _count(model: nn.Module, run: Callable[[int], Tensor], num_samples: int) -> _Counts:
    names = {module: name or MODEL for name, module in model.named_modules()}
    counts, stack = _Counts(), [LOSS]

    def enter(module: nn.Module, _inputs: Any) -> None:
        name = names.get(
            module
        )  # None: not a module of the model; it counts for its caller, such as a loss that is a module
        stack.append(name or stack[-1])
        if name is not None:
            counts[name].num_calls += 1

    def leave(module: nn.Module, _inputs: Any, output: Any) -> None:
        stack.pop()
        if (name := names.get(module)) is None:
            return
        counts[name].output_bytes += tensor_bytes(output)
        if name not in counts.order:
            counts.order.append(name)

    meter = SavedTensorMeter(model, lambda: stack[-1])
    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    try:
        with meter.watch(), _OpCounter(lambda: counts[stack[-1]]):
            loss = run(num_samples)
    finally:
        for handle in handles:
            handle.remove()
    for name, num_bytes in meter.bytes_by_op.items():
        counts[name].saved_bytes = num_bytes
    counts.order.append(LOSS)
    counts[LOSS].num_calls = 1
    del loss
    return counts


class _OpCounter(TorchDispatchMode):
    """Adds every aten op to the tally of the module that is running."""

    def __init__(self, current: Callable[[], _Tally]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._current = current

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        tally = self._current()
        flops = _flops(func, args, kwargs, out)
        differentiated = [tensor for tensor in _tensors(args) if tensor.requires_grad]
        # A product's backward is one product more for each operand that requires a gradient; a bias (one dimension) is free.
        tally.backward_flops += flops * min(sum(tensor.dim() > 1 for tensor in differentiated), _MOST_FACTORS)
        tally.needs_backward |= bool(differentiated)
        tally.flops += flops
        tally.num_bytes += _bytes_moved(func, args, kwargs, out)
        return out


def _flops(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    packet = func._overloadpacket
    if packet in flop_registry:
        return float(flop_registry[packet](*args, **kwargs, out_val=out))
    if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:
        return float(sdpa_flop_count(args[0].shape, args[1].shape, args[2].shape))
    return 0.0


def _bytes_moved(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    inputs, outputs = _tensors((args, kwargs)), _tensors(out)
    storages = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    is_view = bool(outputs) and all(tensor.untyped_storage().data_ptr() in storages for tensor in outputs)
    if is_view and not func._schema.is_mutable:
        return 0
    return tensor_bytes((inputs, outputs))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _op(name: str, model: nn.Module, few: _Tally, many: _Tally, param_bytes: int) -> Op:
    module = None if name == LOSS else (model if name == MODEL else model.get_submodule(name))
    bytes_per_sample = _per_sample(few.num_bytes, many.num_bytes)
    return Op(
        name=name,
        kind="loss" if module is None else type(module).__name__,
        num_calls=many.num_calls,
        flops_per_sample=_per_sample(few.flops, many.flops),
        fixed_bytes=max(few.num_bytes - bytes_per_sample * _FEW, 0.0),
        bytes_per_sample=bytes_per_sample,
        param_bytes=param_bytes,
        backward_factor=many.backward_flops / many.flops if many.flops else float(many.needs_backward),
        saved_bytes_per_sample=max(_per_sample(few.saved_bytes, many.saved_bytes), 0.0),
        output_bytes_per_sample=max(_per_sample(few.output_bytes, many.output_bytes), 0.0),
        factor_shapes=((module.out_features, module.in_features),) if isinstance(module, nn.Linear) else (),
    )


def _per_sample(few: float, many: float) -> float:
    return (many - few) / (_MANY - _FEW)


def _parameters(model: nn.Module, names: Iterable[str]) -> tuple[Parameter, ...]:
    """Trainable parameters, each once: for the module that registered it first or, where that one's hooks never fire
    (MultiheadAttention's out_proj), for its nearest ancestor that ran. Where not even the model ran as a whole, what it
    does outside its children counts for the loss, and so does what it owns outside them.
    """
    known, owners, trainable = set(names), dict[str, list[str]](), dict[str, nn.Parameter]()
    first = {id(parameter): path for path, parameter in model.named_parameters()}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        owner = path.rpartition(".")[0]
        while owner and owner not in known:
            owner = owner.rpartition(".")[0]
        if parameter.requires_grad:
            owners.setdefault(first[id(parameter)], []).append(owner or (MODEL if MODEL in known else LOSS))
            trainable[first[id(parameter)]] = parameter
    return tuple(
        Parameter(
            name=path,
            op=owners[path][0],
            num_bytes=tensor_bytes(parameter),
            shape=tuple(parameter.shape),
            kind=owner_kind(model, path),
            also=tuple(dict.fromkeys(owner for owner in owners[path][1:] if owner != owners[path][0])),
        )
        for path, parameter in trainable.items()
    )


def owner_kind(model: nn.Module, path: str) -> str:
    """The class of the module that owns a parameter: the key of a plan's `by_kind`."""
    return type(model.get_submodule(path.rpartition(".")[0])).__name__
