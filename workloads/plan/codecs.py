"""The codecs that a plan may name: what each is, what it puts on the wire, and where its implementation is.

A codec sends a fusion buffer in rounds, each exchanged as a whole. Their sizes follow from the plan and the shapes of the
buffer's parameters alone, so that they are known before anything runs: runtime and simulator read the same function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.workloads.plan.choices import Registry
from autotune.workloads.plan.compression import CompressionPlan
from autotune.workloads.plan.wire import (
    GATHER,
    INDEX_BYTES,
    SUM,
    Rounds,
    Shape,
    int8_rounds,
    low_rank_rounds,
    top_count,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """What is to be sent, and by which part of a plan."""

    compression: CompressionPlan
    shapes: Sequence[Shape]
    """Of the parameters whose gradients are sent together."""
    num_ranks: int
    element_bytes: int
    """Of one gradient value."""

    @property
    def num_values(self) -> int:
        return sum(map(math.prod, self.shapes))


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecKind:
    """What a codec is."""

    name: str
    text: str
    """One line for documentation."""
    made_by: str
    """"module:function": called with the CompressionPlan and a `BufferShape` of `autotune.runtime.codecs.factory`."""
    rounds: Callable[[Sent], Rounds]
    """Each round's kind, and the bytes that a rank hands over in it; of a `swap`, what it hands to itself included."""
    is_lossless: bool = False
    """Gradients arrive as they were computed. All others get error feedback."""
    is_one_round: bool = False
    """One tensor that is summed as it is: what reducer "bucketed" can send."""
    needs_messages: bool = False
    """Tensors are gathered or swapped from rank to rank, not summed."""
    has_ddp_hook: bool = False
    """Reducer "ddp" can send it, by a communication hook of torch."""


CODECS: Registry[CodecKind] = Registry("codec")
CODECS.register(
    CodecKind(
        name="none",
        text="gradients as they are",
        made_by="autotune.runtime.codecs.protocol:make_identity",
        rounds=lambda sent: ((SUM, sent.num_values * sent.element_bytes),),
        is_lossless=True,
        is_one_round=True,
        has_ddp_hook=True,
    )
)
CODECS.register(
    CodecKind(
        name="fp16",
        text="16-bit floats, summed as such",
        made_by="autotune.runtime.codecs.protocol:make_fp16",
        rounds=lambda sent: ((SUM, sent.num_values * 2),),
        is_one_round=True,
        has_ddp_hook=True,
    )
)
CODECS.register(
    CodecKind(
        name="bf16",
        text="16-bit floats with the range of float32, summed as such",
        made_by="autotune.runtime.codecs.protocol:make_bf16",
        rounds=lambda sent: ((SUM, sent.num_values * 2),),
        is_one_round=True,
    )
)
CODECS.register(
    CodecKind(
        name="int8",
        text="whole numbers from -127 to 127 with a scale per block of neighbours",
        made_by="autotune.runtime.codecs.block_int8:make",
        rounds=lambda sent: int8_rounds(sent.num_values, sent.num_ranks),
        needs_messages=True,
    )
)
CODECS.register(
    CodecKind(
        name="topk",
        text="the largest values and their places (`top_share` of them)",
        made_by="autotune.runtime.codecs.top_k:make",
        rounds=lambda sent: (
            (GATHER, top_count(sent.num_values, sent.compression.top_share) * (sent.element_bytes + INDEX_BYTES)),
        ),
        needs_messages=True,
    )
)
CODECS.register(
    CodecKind(
        name="powersgd",
        text="each matrix as two thin factors (`low_rank` columns)",
        made_by="autotune.runtime.codecs.power_sgd:make",
        rounds=lambda sent: low_rank_rounds(sent.shapes, sent.compression.low_rank, sent.element_bytes),
    )
)


def lossless_codecs() -> tuple[str, ...]:
    """Those with which gradients arrive as they were computed."""
    return CODECS.names(lambda codec: codec.is_lossless)


def one_round_codecs() -> tuple[str, ...]:
    """Those that every reducer of ours can send."""
    return CODECS.names(lambda codec: codec.is_one_round)


def wire_bytes(
    compression: CompressionPlan, shapes: Sequence[Shape], num_ranks: int, element_bytes: int
) -> tuple[tuple[str, int], ...]:
    """Each round's kind and bytes, of gradients of these shapes."""
    sent = Sent(compression=compression, shapes=shapes, num_ranks=num_ranks, element_bytes=element_bytes)
    return CODECS[compression.codec].rounds(sent)
