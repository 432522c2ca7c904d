"""Sums of the gradients of parameters that several ranks hold, once per step: tied layers, lanes, row shards.

Parameters with the same holders form one tensor per dtype. Each holder sums one shard of it, so the sums are bit-identical on
all holders and the parameters stay equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from autotune.runtime.placed.mailbox import Mailbox
from autotune.runtime.placed.parts import Program
from autotune.workloads.errors import SpecError


class SharedGradients:
    """The shared parameters of one rank."""

    def __init__(self, program: Program, modules: Mapping[str, nn.Module], rank: int) -> None:
        holders: dict[str, set[int]] = defaultdict(set)
        own: dict[str, Tensor] = {}
        _check_rows(program)
        for part in program.parts:
            for device in program.devices[part.name]:
                for name in program.parameters(part, device):
                    holders[name].add(device)
            if part.name not in modules:
                continue
            parameters = list(modules[part.name].parameters())
            if len(parameters) != len(part.parameters):
                raise SpecError(
                    f"part {part.name!r} has {len(parameters)} parameters but names {len(part.parameters)}: name each"
                )
            for name, parameter in zip(program.parameters(part, rank), parameters, strict=True):
                if own.setdefault(name, parameter) is not parameter:
                    raise SpecError(
                        f"rank {rank} has two parameters called {name!r}: parts that share one must hold the same tensor"
                    )
        groups: dict[tuple[tuple[int, ...], torch.dtype], list[str]] = defaultdict(list)
        for name in sorted(own):
            if len(holders[name]) > 1 and own[name].requires_grad:
                groups[tuple(sorted(holders[name])), own[name].dtype].append(name)
        # In one order on all ranks, so that messages of a pair match
        ordered = sorted(groups.items(), key=lambda item: (item[0][0], str(item[0][1])))
        self._groups = [(ranks, [own[name] for name in names]) for (ranks, _), names in ordered]

    @property
    def buffer_bytes(self) -> int:
        """Of the messages."""
        return sum(p.numel() * p.element_size() for _, parameters in self._groups for p in parameters)

    def sum(self, mailbox: Mailbox) -> None:
        """Replace every shared gradient by the sum over its holders."""
        waits = []
        for ranks, parameters in self._groups:
            gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            waits.append((mailbox.sum_over(flat, ranks), flat, parameters))
        for wait, flat, parameters in waits:
            wait()
            for parameter, values in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                parameter.grad = values.view_as(parameter).clone()


def _check_rows(program: Program) -> None:
    """A parameter must be whole on all its ranks, or sharded alike on all of them."""
    holders: dict[str, set[tuple[int, ...] | None]] = defaultdict(set)
    for part in program.parts:
        for name in part.parameters:
            holders[name].add(program.devices[part.name] if part.has_own_rows else None)
    for name, found in holders.items():
        if len(found) > 1:
            raise SpecError(
                f"parameter {name!r} is held whole by one part and by rows by another, or by rows on different devices: "
                "let all parts that share it hold it alike, or untie them"
            )
