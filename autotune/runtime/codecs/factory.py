"""The codec that a plan names, for one fusion buffer. All codecs that are not lossless get error feedback."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch.distributed as dist
from torch import Tensor

from autotune.runtime.codecs.error_feedback import ErrorFeedback
from autotune.runtime.codecs.protocol import Codec
from autotune.workloads.plan import CODECS, CompressionPlan
from autotune.workloads.plan.choices import load


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferShape:
    """What a codec must know of its fusion buffer, and of the ranks that take part."""

    shapes: tuple[tuple[int, ...], ...]
    """Of the parameters, in the order in which their gradients stand side by side."""
    rank: int
    num_ranks: int

    @classmethod
    def of(cls, parameters: Sequence[Tensor], group: dist.ProcessGroup) -> Self:
        """Those parameters, on the ranks of a group."""
        shapes = tuple((*p.shape, 2) if p.is_complex() else tuple(p.shape) for p in parameters)
        return cls(shapes=shapes, rank=group.rank(), num_ranks=group.size())

    @property
    def num_values(self) -> int:
        return sum(map(math.prod, self.shapes))


def make_codec(compression: CompressionPlan, buffer: BufferShape) -> Codec:
    """A new one, without residual."""
    kind = CODECS[compression.codec]
    made = load(kind.made_by)(compression, buffer)
    codec: Codec = made if kind.is_lossless else ErrorFeedback(made)
    return codec
