"""The largest values of a fusion buffer and their indices; the rest stays in the residual until it has grown.

Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (2017); with error feedback it converges like
plain SGD (Stich et al., 2018). Each rank chooses its own values, so an all-reduce cannot sum them: every rank gathers
the values of all ranks and adds them in rank order, the same on all ranks. What a rank receives grows with the number
of ranks.

Left out: momentum correction and warm-up of the share (Lin et al., "Deep Gradient Compression", 2018), which belong to
the optimizer, and selection by a sampled threshold, with which the number of values sent could not be predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from autotune.runtime.codecs.protocol import GATHER, Round
from autotune.runtime.device import handle_of
from autotune.workloads.plan.wire import INDEX_BYTES, top_count

if TYPE_CHECKING:
    from autotune.runtime.codecs.factory import BufferShape
    from autotune.workloads.plan import CompressionPlan


class TopK:
    """The codec of one fusion buffer. See `error_feedback.Lossy`."""

    name = "topk"

    def __init__(self, num_values: int, top_share: float) -> None:
        self._count = top_count(num_values, top_share)

    def send(self, owed: Tensor) -> Round:
        places = largest(owed, self._count)
        values = owed[places]
        owed[places] = 0.0
        wire = torch.cat((values.view(torch.uint8), places.to(torch.int32).view(torch.uint8)))
        return Round(kind=GATHER, tensors=(wire,))

    def receive(self, received: Sequence[Tensor], owed: Tensor, flat: Tensor) -> None:  # noqa: ARG002 - nothing to add
        flat.zero_()
        for wire in received:
            # `view` needs aligned memory, which a slice of the received bytes may not have: copy.
            values, places = wire.split((self._count * flat.element_size(), self._count * INDEX_BYTES))
            flat.index_add_(0, places.clone().view(torch.int32), values.clone().view(flat.dtype))

    def buffer_bytes(self, flat: Tensor) -> int:
        return self._count * (flat.element_size() + INDEX_BYTES)


def largest(values: Tensor, count: int) -> Tensor:
    """The indices of the `count` largest magnitudes, ascending; of equals the first. Not finite counts as largest."""
    if count == 0:
        return torch.zeros(0, dtype=torch.int64, device=values.device)
    magnitudes = values.abs().nan_to_num_(nan=torch.inf, posinf=torch.inf)
    if handle_of(values).is_accelerator:  # the search below is faster on a CPU, but needs counts on the host
        return magnitudes.sort(descending=True, stable=True).indices[:count].sort().values
    least = magnitudes.topk(count, sorted=False).values.min()
    above = (magnitudes > least).nonzero().squeeze(1)
    equal = (magnitudes == least).nonzero().squeeze(1)
    return torch.cat((above, equal[: count - above.numel()])).sort().values


def make(compression: CompressionPlan, buffer: BufferShape) -> TopK:
    """As a plan names it."""
    return TopK(buffer.num_values, compression.top_share)
