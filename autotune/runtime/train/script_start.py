"""Checks and broadcasts before a script trains: equal models, optimizers and plans, and rank 0's values on all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.runtime.control.mpi import Control
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan


def shape_text(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "1"


def trained_shapes(model: nn.Module) -> dict[str, str]:
    """The shapes of a model's trained parameters, by name."""
    return {name: shape_text(p) for name, p in model.named_parameters() if p.requires_grad}


def check_alike(control: Control, model: nn.Module, optimizers: Sequence[Optimizer], plan: Plan) -> None:
    """Refuse, on all ranks, a job whose ranks run different scripts; called by all ranks together."""
    facts = _facts(model, optimizers, plan)
    first, *others = control.share(facts)
    for rank, other in enumerate(others, start=1):
        for name in (*first, *other):
            if first.get(name) != other.get(name):
                raise SpecError(
                    f"{name} is {other.get(name, 'not there')} on rank {rank} and {first.get(name, 'not there')} on rank 0: "
                    "all ranks must run the same script with the same model, optimizers and plan"
                )


def _facts(model: nn.Module, optimizers: Sequence[Optimizer], plan: Plan) -> dict[str, str]:
    facts = {"the plan": plan.fingerprint(), "the number of optimizers": str(len(optimizers))}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        trained = ", trained" if tensor.requires_grad else ""
        facts[f"tensor {name!r}"] = f"{shape_text(tensor)} of {str(tensor.dtype).removeprefix('torch.')}{trained}"
    for k, optimizer in enumerate(optimizers):
        facts[f"optimizer {k}"] = type(optimizer).__name__
        for place, group in enumerate(optimizer.param_groups):
            facts[f"optimizer {k}, group {place}"] = f"{len(group['params'])} parameters"
    return facts


def share_optimizer_states(control: Control, optimizers: Sequence[Optimizer]) -> None:
    """Load rank 0's optimizer states on all ranks where they differ: a checkpoint may be loaded on rank 0 only."""
    for optimizer in optimizers:
        digests = control.share(_digest(optimizer.state_dict()))
        if len(set(digests)) > 1:
            state = optimizer.state_dict()
            groups = control.broadcast(_packed(state["param_groups"]) if control.is_leader else None)
            keys = control.broadcast(list(state["state"]) if control.is_leader else None)
            # One message per parameter, so that no message exceeds MPI's limit.
            states = {
                key: _unpacked(control.broadcast(_packed(state["state"][key]) if control.is_leader else None))
                for key in keys
            }
            if not control.is_leader:
                optimizer.load_state_dict({"param_groups": _unpacked(groups), "state": states})


def _packed(value: Any) -> Any:
    """A value of an optimizer's state as a message between ranks: a list of what it is and its content."""
    if isinstance(value, Tensor):
        dense = value.detach().to("cpu").contiguous()
        content = dense.reshape(-1).view(torch.uint8).numpy().tobytes()
        return ["tensor", str(dense.dtype).removeprefix("torch."), list(dense.shape), content]
    if isinstance(value, Mapping):
        return ["table", [[_packed(key), _packed(entry)] for key, entry in value.items()]]
    if isinstance(value, list | tuple):
        return ["list" if isinstance(value, list) else "tuple", [_packed(entry) for entry in value]]
    if value is None or isinstance(value, bool | int | float | str):
        return ["plain", value]
    raise SpecError(
        f"an optimizer's state holds a {type(value).__name__}, which ranks do not exchange: load its checkpoint on every rank"
    )


def _unpacked(message: Any) -> Any:
    kind, *content = message
    if kind == "tensor":
        name, shape, data = content
        dtype = getattr(torch, name)
        return (
            torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)
        )
    if kind == "table":
        return {_unpacked(key): _unpacked(entry) for key, entry in content[0]}
    if kind in ("list", "tuple"):
        entries = [_unpacked(entry) for entry in content[0]]
        return entries if kind == "list" else tuple(entries)
    return content[0]


def _digest(value: Any) -> str:
    seen = hashlib.sha256()
    for text in _texts(value):
        seen.update(text)
    return seen.hexdigest()


def _texts(value: Any) -> Iterable[bytes]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield str(key).encode()
            yield from _texts(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry)
    elif isinstance(value, Tensor):
        yield str(value.dtype).encode()
        dense = value.detach().to("cpu").contiguous().reshape(-1)
        yield dense.view(torch.uint8).numpy().tobytes()
    else:
        yield repr(value).encode()
