"""Gradients as integers from -127 to 127, with one float32 scale per block of neighbouring values.

Integers of different scales cannot be summed by an all-reduce. So each rank owns an equal slice of the fusion buffer:
every rank sends each owner its slice (`swap`), the owner sums in the gradients' own type and rounds the sum to int8
again, and all ranks gather the slices. This moves as many values as a ring all-reduce, in a quarter of the bytes.

Blocks as in Dettmers, "8-bit Approximations for Parallelism in Deep Learning" (2016), and QSGD's buckets (Alistarh et
al., 2017). Rounding is to nearest, not random as in QSGD: with error feedback it need not be unbiased. What the second
rounding leaves out is added to what the owner of the slice owes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from autotune.runtime.codecs.protocol import GATHER, SWAP, Round
from autotune.workloads.plan.wire import BLOCK_VALUES, SCALE_BYTES, slice_blocks, slice_values

if TYPE_CHECKING:
    from autotune.runtime.codecs.factory import BufferShape
    from autotune.workloads.plan import CompressionPlan

_LARGEST = 127


class BlockInt8:
    """The codec of one fusion buffer on one rank. See `error_feedback.Lossy`."""

    name = "int8"

    def __init__(self, num_values: int, *, rank: int, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._length = slice_values(num_values, num_ranks)
        self._padding = self._length * num_ranks - num_values
        start = min(rank * self._length, num_values)
        self._own = slice(start, min(start + self._length, num_values))
        self._is_summed = False

    def send(self, owed: Tensor) -> Round:
        slices = pad(owed, (0, self._padding)).view(self._num_ranks, self._length)
        wire = quantised(slices)
        owed.sub_(self._restored(wire, owed))
        self._is_summed = False
        return Round(kind=SWAP, tensors=wire.unbind())

    def receive(self, received: Sequence[Tensor], owed: Tensor, flat: Tensor) -> Round | None:
        if self._is_summed:
            flat.copy_(self._restored(torch.stack(list(received)), flat))
            self._is_summed = False
            return None
        total = sum_of(received, self._length, flat.dtype)
        wire = quantised(total.unsqueeze(0)).squeeze(0)
        own = owed[self._own]
        own.add_((total - restored(wire, self._length, flat.dtype))[: own.numel()])
        self._is_summed = True
        return Round(kind=GATHER, tensors=(wire,))

    def buffer_bytes(self, flat: Tensor) -> int:  # noqa: ARG002 - the size is known from the start
        return (self._num_ranks + 1) * (self._length + slice_blocks(self._length) * SCALE_BYTES)

    def _restored(self, wire: Tensor, like: Tensor) -> Tensor:
        """The whole buffer from all slices, without the padding."""
        return restored(wire, self._length, like.dtype).reshape(-1)[: like.numel()]


def sum_of(received: Sequence[Tensor], length: int, dtype: torch.dtype) -> Tensor:
    """Summed in rank order, one at a time, so that memory for one slice is enough."""
    total = restored(received[0], length, dtype)
    for wire in received[1:]:
        total.add_(restored(wire, length, dtype))
    return total


def quantised(rows: Tensor) -> Tensor:
    """Each row as bytes: its scales, then its integers. A block that is not finite gets such a scale."""
    num_rows, length = rows.shape
    num_blocks = slice_blocks(length)
    blocks = pad(rows, (0, num_blocks * BLOCK_VALUES - length)).view(num_rows, num_blocks, BLOCK_VALUES)
    scales = (blocks.abs().amax(dim=-1, keepdim=True) / _LARGEST).float()
    # 0/0 (a block of zeros has scale 0) and inf/inf are nan: the integer becomes 0, the scale keeps the information.
    numbers = (blocks / scales).nan_to_num_(0.0).round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8)
    numbers = numbers.view(num_rows, num_blocks * BLOCK_VALUES)[:, :length]
    return torch.cat((scales.squeeze(-1).view(torch.uint8), numbers.view(torch.uint8)), dim=1)


def restored(wire: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """The inverse of `quantised`. One multiplication per value, so all devices compute the same."""
    leading, num_blocks = wire.shape[:-1], slice_blocks(length)
    # `view` needs aligned memory, which a slice of the received bytes may not have: copy.
    scales = wire[..., : num_blocks * SCALE_BYTES].reshape(-1).clone().view(torch.float32)
    numbers = wire[..., num_blocks * SCALE_BYTES :].view(torch.int8).to(dtype)
    numbers = pad(numbers, (0, num_blocks * BLOCK_VALUES - length)).view(*leading, num_blocks, BLOCK_VALUES)
    return numbers.mul_(scales.to(dtype).view(*leading, num_blocks, 1)).flatten(start_dim=-2)[..., :length]


def make(_compression: CompressionPlan, buffer: BufferShape) -> BlockInt8:
    """As a plan names it."""
    return BlockInt8(buffer.num_values, rank=buffer.rank, num_ranks=buffer.num_ranks)
