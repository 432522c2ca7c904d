"""What lossy codecs have left out so far, kept when their units go away: another plan takes over, or a checkpoint is made.

Only the sum over ranks matters, since only sums are applied. So it is collected over all ranks, by parameter, and handed to
one of them: rank 0 adds it to the next gradient that it sends. Where gradients are made of factors nothing but rows is
sent, and every rank adds it to the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autotune.runtime.codecs.error_feedback import ErrorFeedback
from autotune.runtime.codecs.protocol import Codec
from autotune.runtime.codecs.sufficient_factors import Factors


class Sending(Protocol):
    """A unit or a bucket."""

    parameters: list[nn.Parameter]
    views: list[Tensor]
    flat: Tensor
    codec: Codec
    carried: Tensor | None
    is_carrying: bool
    """On any rank."""


def collect(units: Sequence[Sending], names: Mapping[int, str], group: dist.ProcessGroup) -> dict[str, Tensor]:
    """By the names of parameters (given by their ids). Called by all ranks together, with nothing on its way."""
    found: dict[str, Tensor] = {}
    for unit in units:
        if not isinstance(unit.codec, ErrorFeedback) and not unit.is_carrying:
            continue
        total = torch.zeros_like(unit.flat)
        if unit.carried is not None and (group.rank() == 0 or not isinstance(unit.codec, Factors)):
            total.add_(unit.carried)
        if isinstance(unit.codec, ErrorFeedback):
            total.add_(unit.codec.owed_like(unit.flat))
        group.allreduce([total], dist.AllreduceOptions()).wait()
        for parameter, values in zip(unit.parameters, total.split(_sizes(unit)), strict=True):
            found[names[id(parameter)]] = values.clone()
    return found


def hand_over(units: Sequence[Sending], names: Mapping[int, str], owed: Mapping[str, Tensor], rank: int) -> None:
    """Add this to the gradients that follow."""
    for unit in units:
        chosen = [owed.get(names[id(parameter)]) for parameter in unit.parameters]
        if all(part is None for part in chosen):
            continue
        unit.is_carrying = True
        if rank == 0 or isinstance(unit.codec, Factors):
            parts = zip(chosen, _sizes(unit), strict=True)
            unit.carried = torch.cat(
                [unit.flat.new_zeros(n) if p is None else p.reshape(-1).to(unit.flat) for p, n in parts]
            )


def _sizes(unit: Sending) -> list[int]:
    return [view.numel() * (2 if view.is_complex() else 1) for view in unit.views]
