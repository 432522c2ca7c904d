"""Which gradients a job exchanges, and how a plan divides them into units.

Everything that trains is exchanged: the parameters of the models, and those that only an optimizer knows. Units are made in
the order in which backward passes bring gradients, which is the reverse of the order in which layers are called. Until a
backward pass has shown it, the order of registration stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.runtime.codecs.factory import UnitShape, make_codec
from autotune.runtime.codecs.protocol import Codec
from autotune.runtime.codecs.sufficient_factors import Factors, factored_layers
from autotune.runtime.reduce.fusion_buffer import Unit
from autotune.runtime.reduce.sparse_rows import SparseUnit
from autotune.workloads.capture import owner_kind
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import CompressionPlan, Plan
from autotune.workloads.plan.buckets import bucket_indices, unit_indices


class Models(nn.ModuleList):
    """Several models of one job; their parameters are named as in a list."""


def roots_of(model: nn.Module) -> list[nn.Module]:
    """What a script calls."""
    return list(model) if isinstance(model, Models) else [model]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A parameter that a backward pass may bring a gradient for."""

    name: str
    parameter: nn.Parameter
    owner: int | None
    """Which optimizer updates it."""
    kind: str
    """The class of the module that owns it."""
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
        Trained(name=name, parameter=p, owner=owners.get(key), kind=kind, is_sparse=key in tables)
        for key, (name, p, kind) in named.items()
        if p.requires_grad
    ]


def optimized(optimizer: Optimizer) -> list[nn.Parameter]:
    """All parameters of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def in_order(trained: Sequence[Trained], arrivals: Sequence[int]) -> list[Trained]:
    """As gradients arrive. `arrivals`: places in `trained`, first come first; what has not come is the least urgent.

    Modules go by their first gradient, and the parameters of one stay together in the order of registration, reversed: a
    model that registers its layers as it calls them is cut as the simulator cuts it.
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


def make_units(
    trained: Sequence[Trained], plan: Plan, group: dist.ProcessGroup, factors: dict[int, Factors]
) -> list[Unit]:
    """Of gradients in the order of their arrival; layers that send factors, and sparse tables, alone."""
    plan.compression.check_kinds(one.kind for one in trained)
    check_sparse(trained, plan)
    trained = _together(trained, factors)
    units = []
    for index, places in enumerate(_cut(trained, plan, factors)):
        chosen = [trained[place] for place in places]
        units.append(_unit(index, chosen, plan.compression, group, factors))
    return units


def check_sparse(trained: Sequence[Trained], plan: Plan) -> None:
    """Refuse tables whose rows the plan's transport does not carry."""
    if plan.comm.transport == "mpi" and (tables := [one.name for one in trained if one.is_sparse]):
        raise SpecError(
            f"{tables[0]} has sparse gradients, which are gathered by messages from rank to rank, and transport 'mpi' carries "
            "none: use transport 'gloo', or sparse=False"
        )


def _together(trained: Sequence[Trained], factors: dict[int, Factors]) -> list[Trained]:
    """The parameters of a layer that sends factors, next to each other."""
    layers: dict[int, list[Trained]] = {}
    for one in trained:
        layers.setdefault(id(factors.get(id(one.parameter), one)), []).append(one)
    for layer in layers.values():
        if len({one.owner for one in layer}) > 1:
            raise SpecError(
                f"{layer[0].name} and {layer[1].name} have different optimizers, so the layer's factors cannot be applied at "
                "once: take it out of the plan's factors"
            )
    return [one for layer in layers.values() for one in layer]


def _unit(
    index: int,
    chosen: Sequence[Trained],
    compression: CompressionPlan,
    group: dist.ProcessGroup,
    factors: dict[int, Factors],
) -> Unit:
    first, parameters = chosen[0], [one.parameter for one in chosen]
    if first.is_sparse:
        return SparseUnit(index, first.parameter, first.owner)
    codec: Codec | None = factors.get(id(first.parameter))
    if codec is not None:
        parameters = [p for p in _as_factored(codec) if any(p is other for other in parameters)]
    else:
        codec = make_codec(compression.for_kind(first.kind), UnitShape.of(parameters, group))
    return Unit(index, parameters, codec, first.owner)


def _as_factored(codec: Codec) -> list[nn.Parameter]:
    assert isinstance(codec, Factors)
    return codec.parameters


def _cut(trained: Sequence[Trained], plan: Plan, factors: dict[int, Factors]) -> list[list[int]]:
    sizes = [one.parameter.numel() * one.parameter.element_size() for one in trained]
    codecs = [plan.compression.for_kind(one.kind).codec for one in trained]
    kinds = [
        (one.parameter.dtype, one.parameter.device, codec, one.owner)
        for one, codec in zip(trained, codecs, strict=True)
    ]
    alone = [factors.get(id(one.parameter)) or (one.name if one.is_sparse else None) for one in trained]
    if plan.comm.reducer == "bucketed":
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
