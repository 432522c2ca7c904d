"""The codec that a plan names, for one unit. Whatever is not lossless gets error feedback."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.runtime.codecs.block_int8 import BlockInt8
from autotune.runtime.codecs.error_feedback import ErrorFeedback, Lossy
from autotune.runtime.codecs.power_sgd import PowerSgd
from autotune.runtime.codecs.protocol import Cast, Codec, Identity
from autotune.runtime.codecs.top_k import TopK
from autotune.workloads.errors import unknown_name
from autotune.workloads.plan import CompressionPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitShape:
    """What a codec must know of its unit, and of who takes part."""

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


def make_codec(compression: CompressionPlan, unit: UnitShape) -> Codec:
    """A new one, with nothing owed."""
    lossy: dict[str, Callable[[], Lossy]] = {
        "fp16": lambda: Cast("fp16", torch.float16, unit.num_ranks),
        "bf16": lambda: Cast("bf16", torch.bfloat16, unit.num_ranks),
        "int8": lambda: BlockInt8(unit.num_values, rank=unit.rank, num_ranks=unit.num_ranks),
        "topk": lambda: TopK(unit.num_values, compression.top_share),
        "powersgd": lambda: PowerSgd(unit.shapes, compression.low_rank),
    }
    if compression.codec == "none":
        return Identity()
    if compression.codec not in lossy:
        raise unknown_name("codec", compression.codec, ("none", *lossy))
    return ErrorFeedback(lossy[compression.codec]())
