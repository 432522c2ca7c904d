"""The largest values of a unit and where they stand; the rest stays behind until it has grown.

Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (2017); with the error fed back it converges like
plain SGD (Stich et al., 2018). Each rank chooses its own values, so a sum on the way is not possible: everybody gathers
everybody's values and adds them in rank order, the same on all ranks. What a rank receives grows with the number of ranks.

Left out: momentum correction and warm-up of the share (Lin et al., "Deep Gradient Compression", 2018), which belong to the
optimizer, and choosing by a sampled threshold, which would send a number of values that nobody can foretell.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autotune.runtime.codecs.protocol import GATHER, Round
from autotune.workloads.plan.wire import INDEX_BYTES, top_count


class TopK:
    """Of one unit. See `error_feedback.Lossy`."""

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
            # Copies begin where their types may, wherever the received bytes begin.
            values, places = wire.split((self._count * flat.element_size(), self._count * INDEX_BYTES))
            flat.index_add_(0, places.clone().view(torch.int32), values.clone().view(flat.dtype))

    def buffer_bytes(self, flat: Tensor) -> int:
        return self._count * (flat.element_size() + INDEX_BYTES)


def largest(values: Tensor, count: int) -> Tensor:
    """The places of the `count` largest magnitudes, rising; of equals the first. What is not finite counts as largest."""
    if count == 0:
        return torch.zeros(0, dtype=torch.int64, device=values.device)
    magnitudes = values.abs().nan_to_num_(nan=torch.inf, posinf=torch.inf)
    least = magnitudes.topk(count, sorted=False).values.min()
    above = (magnitudes > least).nonzero().squeeze(1)
    equal = (magnitudes == least).nonzero().squeeze(1)
    return torch.cat((above, equal[: count - above.numel()])).sort().values
