"""What a fusion buffer looks like on the wire: one message, or several rounds of them.

A codec belongs to one fusion buffer and may keep state between steps (the residual of error feedback, for instance). A step begins with
`encode`; whenever a round has been exchanged, `decode` either says what the next round is or leaves the result in `flat`.
All ranks run the same codec with the same rounds, so what a rank sends in a round every other rank expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from autotune.workloads.plan import CompressionPlan, wire

if TYPE_CHECKING:
    from autotune.runtime.codecs.factory import BufferShape

SUM, GATHER, SWAP = wire.SUM, wire.GATHER, wire.SWAP
"""How a round is exchanged. `sum`: the tensor becomes the sum over ranks, in place. `gather`: every rank receives every rank's
tensor; their sizes may differ. `swap`: rank r's tensor number j goes to rank j; all tensors for one rank are equally long."""


_SAFE = 0.99
"""Of a type's range, lest rounding to it goes beyond."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What a rank puts on the wire at once: contiguous tensors of one dimension."""

    kind: str
    tensors: tuple[Tensor, ...]
    """One; with `swap` one per rank."""

    @property
    def num_bytes(self) -> int:
        """Of the gradient as it is encoded; a collective may carry it more than once."""
        return sum(tensor.nbytes for tensor in self.tensors)


class Codec(Protocol):
    """Invariant: after the last round `flat` holds the same on every rank: the sum over ranks, exact if `is_lossless`."""

    name: str
    is_lossless: bool

    def encode(self, flat: Tensor) -> Round:
        """The first round, for this rank's gradient. A tensor of it may be `flat` itself."""

    def decode(self, received: Sequence[Tensor], flat: Tensor) -> Round | None:
        """The next round, or None once the result is in `flat`.

        `received`: with `sum` the one summed tensor, else what came from each rank, in rank order, this rank's own included.
        """

    def buffer_bytes(self, flat: Tensor) -> int:
        """Memory taken beside `flat`: wire tensors, and what is kept between steps."""


class Identity:
    """Gradients as they are."""

    name = "none"
    is_lossless = True

    def encode(self, flat: Tensor) -> Round:
        return Round(kind=SUM, tensors=(flat,))

    def decode(self, received: Sequence[Tensor], flat: Tensor) -> None:
        if received[0] is not flat:
            flat.copy_(received[0])

    def buffer_bytes(self, flat: Tensor) -> int:  # noqa: ARG002 - none: the wire tensor is `flat`
        return 0


class Cast:
    """Gradients in a narrower float type; sums are taken in it too."""

    is_lossless = False

    def __init__(self, name: str, dtype: torch.dtype, num_ranks: int = 1) -> None:
        self.name = name
        self._dtype = dtype
        self._limit = _SAFE * torch.finfo(dtype).max / num_ranks
        """No sum of finite values of all ranks leaves the range of the type."""

    def encode(self, flat: Tensor) -> Round:
        return Round(kind=SUM, tensors=(flat.to(self._dtype),))

    def decode(self, received: Sequence[Tensor], flat: Tensor) -> None:
        flat.copy_(received[0])

    def send(self, owed: Tensor) -> Round:
        """For error feedback: what is too large for the type stays in the residual. What the sum itself rounds off is lost."""
        fitting = torch.where(owed.isinf(), owed, owed.clamp(-self._limit, self._limit))
        first = self.encode(fitting)
        owed.sub_(first.tensors[0])
        return first

    def receive(self, received: Sequence[Tensor], owed: Tensor, flat: Tensor) -> None:  # noqa: ARG002 - nothing to add
        self.decode(received, flat)

    def buffer_bytes(self, flat: Tensor) -> int:
        return flat.numel() * self._dtype.itemsize


def make_identity(_compression: CompressionPlan, _buffer: BufferShape) -> Identity:
    return Identity()


def make_fp16(_compression: CompressionPlan, buffer: BufferShape) -> Cast:
    return Cast("fp16", torch.float16, buffer.num_ranks)


def make_bf16(_compression: CompressionPlan, buffer: BufferShape) -> Cast:
    return Cast("bf16", torch.bfloat16, buffer.num_ranks)
