"""Several ranks of one codec in one process, each round exchanged as soon as all have posted it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autotune.runtime.codecs.factory import BufferShape, make_codec
from autotune.runtime.codecs.protocol import GATHER, SUM, SWAP, Codec, Round
from autotune.workloads.plan import CompressionPlan
from autotune.workloads.plan.wire import Shape


def exchange(rounds: Sequence[Round]) -> list[list[Tensor]]:
    """What each rank receives when rank r posts round number r."""
    (kind,) = {posted.kind for posted in rounds}
    if kind == SUM:
        total = rounds[0].tensors[0].clone()
        for posted in rounds[1:]:
            total.add_(posted.tensors[0])
        for posted in rounds:
            posted.tensors[0].copy_(total)
        return [list(posted.tensors) for posted in rounds]
    if kind == GATHER:
        return [[_moved(posted.tensors[0]) for posted in rounds] for _ in rounds]
    assert kind == SWAP
    return [[_moved(posted.tensors[rank]) for posted in rounds] for rank in range(len(rounds))]


def _moved(tensor: Tensor) -> Tensor:
    """A copy that begins at no round address, as within a larger buffer."""
    return torch.cat((tensor[:1], tensor))[1:] if tensor.numel() else tensor.clone()


class Ranks:
    """Drives the codecs of all ranks."""

    def __init__(self, codecs: Sequence[Codec]) -> None:
        self.codecs = list(codecs)
        self.posted: list[list[Round]] = []
        """Of the last step: each round of all ranks."""
        self.rounded_off: Tensor | float = 0.0
        """Of all steps whose only round was a sum: by how much it missed the exact one."""

    @classmethod
    def of(cls, compression: CompressionPlan, shapes: Sequence[Shape], num_ranks: int) -> Ranks:
        buffers = [BufferShape(shapes=tuple(shapes), rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
        return cls([make_codec(compression, buffer) for buffer in buffers])

    def step(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Each rank's result."""
        flats = [gradient.clone() for gradient in gradients]
        rounds = [codec.encode(flat) for codec, flat in zip(self.codecs, flats, strict=True)]
        self.posted = []
        while True:
            self.posted.append(rounds)
            exact = sum(posted.tensors[0].double() for posted in rounds)
            received = exchange(rounds)
            following = [c.decode(r, flat) for c, r, flat in zip(self.codecs, received, flats, strict=True)]
            rounds = [next_round for next_round in following if next_round is not None]
            if not rounds:
                break
            assert len(rounds) == len(flats), "some ranks are done and others are not"
        if len(self.posted) == 1 and self.posted[0][0].kind == SUM:
            self.rounded_off = self.rounded_off + (exact - received[0][0].double())
        return flats

    def owed(self) -> Tensor:
        """By all ranks together."""
        return torch.stack([codec._owed.double() for codec in self.codecs]).sum(dim=0)  # type: ignore[attr-defined]
