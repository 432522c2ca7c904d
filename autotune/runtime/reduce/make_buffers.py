"""Which gradients a job exchanges, and how a plan divides them into fusion buffers.

Every trained parameter is exchanged: those of the models, and those that only an optimizer holds. Buffers follow the
order in which backward passes produce gradients, the reverse of the order in which layers are called. Until the first
backward pass has shown that order, the order of registration is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.runtime.codecs.factory import BufferShape, make_codec
from autotune.runtime.codecs.protocol import Codec
from autotune.runtime.codecs.sufficient_factors import Factors, factored_layers
from autotune.runtime.reduce.fusion_buffer import FusionBuffer
from autotune.runtime.reduce.sparse_rows import SparseBuffer
from autotune.workloads.capture import owner_kind
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import CompressionPlan, Plan, ReducerKind
from autotune.workloads.plan.buckets import bucket_indices, unit_indices


class Models(nn.ModuleList):
    """Several models of one job; their parameters are named as in a list."""


def roots_of(model: nn.Module) -> list[nn.Module]:
    """The modules that a script calls."""
    return list(model) if isinstance(model, Models) else [model]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A parameter that a backward pass may produce a gradient for."""

    name: str
    parameter: nn.Parameter
    optimizer_index: int | None
    """The optimizer that updates it."""
    kind: str
    """The class of the module that holds it."""
    is_sparse: bool


def trained_parameters(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[Trained]:
    """In the order of registration."""
    owners = {id(p): k for k, optimizer in enumerate(optimizers) for p in optimized(optimizer)}
    tables = {id(m.weight) for m in model.modules() if getattr(m, "sparse", None) is True and hasattr(m, "weight")}
    named = {id(p): (name, p, owner_kind(model, name)) for name, p in model.named_parameters()}
    for k, optimizer in enumerate(optimizers):
        for place, p in enumerate(optimized(optimizer)):
            named.setdefault(id(p), (f"optimizer {k}, parameter {place}", p, "Parameter"))
    return [
        Trained(name=name, parameter=p, optimizer_index=owners.get(key), kind=kind, is_sparse=key in tables)
        for key, (name, p, kind) in named.items()
        if p.requires_grad
    ]


def optimized(optimizer: Optimizer) -> list[nn.Parameter]:
    """All parameters of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def in_order(trained: Sequence[Trained], arrivals: Sequence[int]) -> list[Trained]:
    """As gradients arrive. `arrivals`: places in `trained`, the first arrival first; what has not arrived is least
    urgent.

    Modules are ordered by their first gradient. The parameters of a module stay together, in the reverse order of
    registration. So a model that registers its layers as it calls them is cut as the simulator cuts it.
    """
    if not arrivals:
        return list(reversed(trained))
    came = {place: rank for rank, place in enumerate(arrivals)}
    first: dict[str, int] = {}
    for place, one in enumerate(trained):
        module = one.name.rpartition(".")[0]
        first[module] = min(first.get(module, len(trained)), came.get(place, len(trained)))
    modules = [one.name.rpartition(".")[0] for one in trained]
    is_late = {module: rank == len(trained) for module, rank in first.items()}
    places = list(reversed(range(len(trained))))
    places.sort(key=lambda place: _when(modules[place], first, is_late))
    return [trained[place] for place in places]


def _when(module: str, first: dict[str, int], is_late: dict[str, bool]) -> int:
    return -1 if is_late[module] else first[module]


def make_buffers(
    trained: Sequence[Trained], plan: Plan, group: dist.ProcessGroup, factors: dict[int, Factors]
) -> list[FusionBuffer]:
    """One buffer after another in the order of arrival; a layer with sufficient factors or a sparse table has its own."""
    plan.compression.check_kinds(one.kind for one in trained)
    check_sparse(trained, plan)
    trained = _together(trained, factors)
    buffers = []
    for index, places in enumerate(_cut(trained, plan, factors)):
        chosen = [trained[place] for place in places]
        buffers.append(_make_buffer(index, chosen, plan.compression, group, factors))
    return buffers


def check_sparse(trained: Sequence[Trained], plan: Plan) -> None:
    """Refuse sparse tables if the plan's transport cannot carry their rows."""
    if plan.comm.transport == "mpi" and (tables := [one.name for one in trained if one.is_sparse]):
        raise SpecError(
            f"{tables[0]} has sparse gradients, which are gathered by messages from rank to rank, and transport 'mpi' carries "
            "none: use transport 'gloo', or sparse=False"
        )


def _together(trained: Sequence[Trained], factors: dict[int, Factors]) -> list[Trained]:
    """The parameters of a layer that sends sufficient factors, next to each other."""
    layers: dict[int, list[Trained]] = {}
    for one in trained:
        layers.setdefault(id(factors.get(id(one.parameter), one)), []).append(one)
    for layer in layers.values():
        if len({one.optimizer_index for one in layer}) > 1:
            raise SpecError(
                f"{layer[0].name} and {layer[1].name} have different optimizers, so the layer's sufficient factors "
                "cannot be applied at once: take it out of the plan's factors"
            )
    return [one for layer in layers.values() for one in layer]


def _make_buffer(
    index: int,
    chosen: Sequence[Trained],
    compression: CompressionPlan,
    group: dist.ProcessGroup,
    factors: dict[int, Factors],
) -> FusionBuffer:
    first, parameters = chosen[0], [one.parameter for one in chosen]
    if first.is_sparse:
        return SparseBuffer(index, first.parameter, first.optimizer_index)
    codec: Codec | None = factors.get(id(first.parameter))
    if codec is not None:
        parameters = [p for p in _as_factored(codec) if any(p is other for other in parameters)]
    else:
        codec = make_codec(compression.for_kind(first.kind), BufferShape.of(parameters, group))
    return FusionBuffer(index, parameters, codec, first.optimizer_index)


def _as_factored(codec: Codec) -> list[nn.Parameter]:
    assert isinstance(codec, Factors)
    return codec.parameters


def _cut(trained: Sequence[Trained], plan: Plan, factors: dict[int, Factors]) -> list[list[int]]:
    sizes = [one.parameter.numel() * one.parameter.element_size() for one in trained]
    codecs = [plan.compression.for_kind(one.kind).codec for one in trained]
    kinds = [
        (one.parameter.dtype, one.parameter.device, codec, one.optimizer_index)
        for one, codec in zip(trained, codecs, strict=True)
    ]
    alone = [factors.get(id(one.parameter)) or (one.name if one.is_sparse else None) for one in trained]
    if plan.comm.reducer == ReducerKind.BUCKETED:
        return bucket_indices(plan.comm.bucket_bytes, sizes, list(zip(kinds, alone, strict=True)))
    return unit_indices(plan.comm.partition_bytes, sizes, kinds=kinds, layers=alone)


def make_factors(
    model: nn.Module, plan: Plan, make: Callable[[nn.Linear], Factors], *, is_first: bool
) -> dict[int, Factors]:
    return factored_layers(model, plan.compression.factors, make, skip_frozen=not is_first)


def signature(trained: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> tuple[object, ...]:
    """Changes when a parameter is frozen or unfrozen, or an optimizer is given others."""
    groups = tuple(tuple(map(id, group["params"])) for optimizer in optimizers for group in optimizer.param_groups)
    return (groups, tuple(p.requires_grad for p in trained))
