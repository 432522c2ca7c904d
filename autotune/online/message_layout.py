"""The messages that a plan cuts a model's gradients into: how many, how large, when each is ready and when it is needed.

The layout does not depend on speeds. It is computed once per candidate; the analytic model then combines it with the
measured network of each window. Gradients are grouped by the same functions that the runtime and the simulator call, and
every layer is sent by its own codec (`CompressionPlan.by_kind`). A codec whose rounds are not sums (gather, swap) is
counted as the sum that puts as many bytes on the links. Sufficient factors are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autotune.online.model_sizes import ModelSizes
from autotune.workloads.plan import CODECS, CompressionPlan, Plan, ReducerKind
from autotune.workloads.plan.buckets import bucket_indices, ddp_bucket_indices, unit_indices
from autotune.workloads.plan.codecs import wire_bytes
from autotune.workloads.plan.wire import GATHER, SUM

Floats = NDArray[np.float64]

MOMENTS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)
"""Shares of a pass at which the layout counts the bytes that are not yet sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecShare:
    """The part of a model that one codec sends."""

    codec: str
    gradient_bytes: float
    """Before encoding."""
    ratio: float
    """Bytes on the wire per byte of gradients."""
    num_rounds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageLayout:
    """The messages of one plan."""

    num_messages: float
    wire_bytes: float
    """Of all messages."""
    largest_bytes: float
    codec_bytes: tuple[tuple[str, float], ...]
    """Gradient bytes that each codec encodes and decodes, by codec; "none" is left out."""
    num_rounds: int
    """Of the codec with the most rounds."""
    last_needed: float
    """The moment of the forward pass at which the gradient that was ready last is needed."""
    late_bytes: tuple[float, ...]
    """Bytes of the messages that are not ready at each of `MOMENTS` of the backward pass."""
    late_count: tuple[float, ...]
    """Number of those messages."""
    early_bytes: tuple[float, ...]
    """Bytes of the messages that the forward pass needs by each moment; the first layer's are needed at 0."""
    early_count: tuple[float, ...]
    """Number of those messages."""
    early_ready: tuple[float, ...]
    """The moment of the backward pass at which the first of those messages is ready."""


def layout_of(plan: Plan, model: ModelSizes) -> MessageLayout:
    """The messages of a data-parallel plan."""
    comm = plan.comm
    shares = _codec_shares(plan.compression, model, len(plan.batch.samples))
    tensor_codecs = _tensor_codecs(plan.compression, model)
    groups = _groups(comm.reducer, comm.message_bytes, model.sizes_bytes, tensor_codecs)
    codecs = [shares[tensor_codecs[group[0]] if tensor_codecs else plan.compression.codec] for group in groups]
    sizes = np.array([sum(model.sizes_bytes[index] for index in group) for group in groups], np.float64)
    sizes *= np.array([share.ratio for share in codecs], np.float64)
    parts = np.ones(len(sizes))
    if comm.is_scheduled:
        is_cut = np.array([CODECS[share.codec].is_one_round for share in codecs], np.bool_)
        parts = np.where(is_cut, np.maximum(np.rint(sizes / comm.partition_bytes), 1.0), 1.0)
    counts = parts * np.array([share.num_rounds for share in codecs], np.float64)
    ready = np.array([max(model.ready[index] for index in group) for group in groups])
    if not comm.is_scheduled:
        ready = np.maximum.accumulate(ready) if len(ready) else ready  # buckets are sent in order
    needed = np.array([min(model.needed[index] for index in group) for group in groups])
    late = [ready > moment for moment in MOMENTS]
    early = [needed <= moment for moment in MOMENTS]
    return MessageLayout(
        num_messages=float(counts.sum()),
        wire_bytes=float(sizes.sum()),
        largest_bytes=float((sizes / parts).max(initial=0.0)),
        codec_bytes=tuple((share.codec, share.gradient_bytes) for share in shares.values() if share.codec != "none"),
        num_rounds=max(share.num_rounds for share in shares.values()),
        last_needed=float(needed[ready.argmax()]) if len(ready) else 0.0,
        late_bytes=tuple(float(sizes[chosen].sum()) for chosen in late),
        late_count=tuple(float(counts[chosen].sum()) for chosen in late),
        early_bytes=tuple(float(sizes[chosen].sum()) for chosen in early),
        early_count=tuple(float(counts[chosen].sum()) for chosen in early),
        early_ready=tuple(float(ready[chosen].min(initial=1.0)) for chosen in early),
    )


def _tensor_codecs(compression: CompressionPlan, model: ModelSizes) -> tuple[str, ...] | None:
    """The codec of each tensor; None if all tensors have the same codec."""
    if not compression.by_kind:
        return None
    return tuple(compression.for_kind(kind).codec for kind in model.kinds)


@lru_cache(maxsize=256)
def _groups(
    reducer: str, size: int, sizes_bytes: tuple[int, ...], codecs: tuple[str, ...] | None
) -> tuple[tuple[int, ...], ...]:
    """The tensors of each bucket or fusion buffer. Cached: many candidates differ only in other knobs."""
    if reducer == ReducerKind.SCHEDULED:
        groups = unit_indices(size, sizes_bytes, kinds=codecs)
    else:
        groups = (ddp_bucket_indices if reducer == ReducerKind.DDP else bucket_indices)(size, sizes_bytes)
    return tuple(map(tuple, groups))


@lru_cache(maxsize=256)
def _codec_shares(compression: CompressionPlan, model: ModelSizes, num_ranks: int) -> dict[str, CodecShare]:
    """What each codec of a plan sends of a model, by codec.

    The ratio is that of an equivalent sum. Of a sum of b bytes a rank sends 2(N-1)/N · b; of a gather of b bytes per rank
    (N-1) · b; of a swap (N-1)/N · b.
    """
    codecs = _tensor_codecs(compression, model) or (compression.codec,) * len(model.sizes_bytes)
    shares = {}
    for codec in dict.fromkeys(codecs or (compression.codec,)):
        chosen = [index for index, other in enumerate(codecs) if other == codec]
        shapes = [model.shapes[index] for index in chosen]
        gradient_bytes = sum(model.sizes_bytes[index] for index in chosen)
        rounds = wire_bytes(_only(compression, codec), shapes, num_ranks, model.element_bytes)
        factors = {SUM: 1.0, GATHER: num_ranks / 2}
        total = sum(size * factors.get(kind, 0.5) for kind, size in rounds)
        shares[codec] = CodecShare(
            codec=codec,
            gradient_bytes=float(gradient_bytes),
            ratio=total / max(gradient_bytes, 1),
            num_rounds=len(rounds),
        )
    return shares


def _only(compression: CompressionPlan, codec: str) -> CompressionPlan:
    """The same parameters with one codec for all layers."""
    return replace(compression, codec=codec, by_kind=(), factors=())
