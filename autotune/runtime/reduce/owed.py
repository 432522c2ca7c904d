"""What lossy codecs owe (have left out so far), kept when their buffers are replaced or a checkpoint is saved.

Only sums over ranks are applied, so only the sum of what all ranks owe matters. It is collected by parameter and given
to one rank: rank 0 adds it to the next gradient that it sends. A layer with sufficient factors sends rows only, so
there every rank adds it to the result.
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


class GradientBuffer(Protocol):
    """A fusion buffer or a bucket."""

    parameters: list[nn.Parameter]
    views: list[Tensor]
    flat: Tensor
    codec: Codec
    carried: Tensor | None
    is_carrying: bool
    """Whether any rank has something carried."""


def collect(buffers: Sequence[GradientBuffer], names: Mapping[int, str], group: dist.ProcessGroup) -> dict[str, Tensor]:
    """What all ranks owe, by the names of parameters (`names`: by their ids). Collective; nothing is in flight."""
    found: dict[str, Tensor] = {}
    for buffer in buffers:
        if not isinstance(buffer.codec, ErrorFeedback) and not buffer.is_carrying:
            continue
        total = torch.zeros_like(buffer.flat)
        if buffer.carried is not None and (group.rank() == 0 or not isinstance(buffer.codec, Factors)):
            total.add_(buffer.carried)
        if isinstance(buffer.codec, ErrorFeedback):
            total.add_(buffer.codec.owed_like(buffer.flat))
        group.allreduce([total], dist.AllreduceOptions()).wait()
        for parameter, values in zip(buffer.parameters, total.split(_sizes(buffer)), strict=True):
            found[names[id(parameter)]] = values.clone()
    return found


def hand_over(
    buffers: Sequence[GradientBuffer], names: Mapping[int, str], owed: Mapping[str, Tensor], rank: int
) -> None:
    """Add `owed` to the next gradients that are sent."""
    for buffer in buffers:
        chosen = [owed.get(names[id(parameter)]) for parameter in buffer.parameters]
        if all(values is None for values in chosen):
            continue
        buffer.is_carrying = True
        if rank == 0 or isinstance(buffer.codec, Factors):
            pairs = zip(chosen, _sizes(buffer), strict=True)
            buffer.carried = torch.cat(
                [buffer.flat.new_zeros(n) if p is None else p.reshape(-1).to(buffer.flat) for p, n in pairs]
            )


def _sizes(buffer: GradientBuffer) -> list[int]:
    return [view.numel() * (2 if view.is_complex() else 1) for view in buffer.views]
