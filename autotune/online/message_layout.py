"""What a plan makes of a model's gradients: how many messages, how large, how late they are there and how soon needed.

It does not depend on speeds, so it is worked out once per candidate, and every window only multiplies. Messages are cut
by the same functions that the runtime and the simulator call; of codecs whose rounds are no sums the bytes are those of
a sum that puts as much on the links.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autotune.online.model_sizes import ModelSizes
from autotune.workloads.plan import ONE_ROUND_CODECS, CommPlan, CompressionPlan, Plan
from autotune.workloads.plan.buckets import bucket_indices, ddp_bucket_indices, unit_indices
from autotune.workloads.plan.wire import GATHER, SUM, wire_bytes

Floats = NDArray[np.float64]

MOMENTS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)
"""Of a pass, at which it is asked what is still to be sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanShape:
    """The messages of one plan."""

    num_messages: float
    wire_bytes: float
    """All together."""
    largest_bytes: float
    codec_bytes: float
    """Of gradients that are encoded and decoded."""
    num_rounds: int
    last_needed: float
    """When the forward pass reads what was ready last."""
    late_bytes: tuple[float, ...]
    """Of the messages that are not there yet at each of `MOMENTS` of the backward pass, and how many those are."""
    late_count: tuple[float, ...]
    early_bytes: tuple[float, ...]
    """Of the messages that the forward pass has read by each moment (the first layer's at 0), how many those are, and
    when the first of them is ready."""
    early_count: tuple[float, ...]
    early_ready: tuple[float, ...]


def plan_shape(plan: Plan, model: ModelSizes) -> PlanShape:
    """The shape of a data-parallel plan."""
    groups = _cut(plan.comm, model)
    ratio, num_rounds = _ratio(plan.compression, model, len(plan.batch.samples))
    sizes = np.array([sum(model.sizes_bytes[index] for index in group) for group in groups], np.float64) * ratio
    parts = np.ones(len(sizes))
    if plan.comm.reducer == "scheduled" and plan.compression.codec in ONE_ROUND_CODECS:
        parts = np.maximum(np.rint(sizes / plan.comm.partition_bytes), 1.0)
    ready = np.array([max(model.ready[index] for index in group) for group in groups])
    if plan.comm.reducer != "scheduled":
        ready = np.maximum.accumulate(ready) if len(ready) else ready  # a bucket waits for those before it
    needed = np.array([min(model.needed[index] for index in group) for group in groups])
    late = [ready > moment for moment in MOMENTS]
    early = [needed <= moment for moment in MOMENTS]
    return PlanShape(
        num_messages=float(parts.sum()) * num_rounds,
        wire_bytes=float(sizes.sum()),
        largest_bytes=float((sizes / parts).max(initial=0.0)),
        codec_bytes=float(model.total_bytes) if plan.compression.codec != "none" else 0.0,
        num_rounds=num_rounds,
        last_needed=float(needed[ready.argmax()]) if len(ready) else 0.0,
        late_bytes=tuple(float(sizes[chosen].sum()) for chosen in late),
        late_count=tuple(float(parts[chosen].sum()) * num_rounds for chosen in late),
        early_bytes=tuple(float(sizes[chosen].sum()) for chosen in early),
        early_count=tuple(float(parts[chosen].sum()) * num_rounds for chosen in early),
        early_ready=tuple(float(ready[chosen].min(initial=1.0)) for chosen in early),
    )


def _cut(comm: CommPlan, model: ModelSizes) -> tuple[tuple[int, ...], ...]:
    size = comm.partition_bytes if comm.reducer == "scheduled" else comm.bucket_bytes
    return _groups(comm.reducer, size, model.sizes_bytes)


@lru_cache(maxsize=256)
def _groups(reducer: str, size: int, sizes_bytes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Many candidates differ in other things only."""
    if reducer == "scheduled":
        groups = unit_indices(size, sizes_bytes)
    else:
        groups = (ddp_bucket_indices if reducer == "ddp" else bucket_indices)(size, sizes_bytes)
    return tuple(map(tuple, groups))


@lru_cache(maxsize=256)
def _ratio(compression: CompressionPlan, model: ModelSizes, num_ranks: int) -> tuple[float, int]:
    """Bytes on the wire per byte of gradients, as a sum would have them, and in how many rounds.

    Of a sum of b bytes a rank sends 2(N-1)/N · b; of a gather of b each (N-1) · b; of a swap (N-1)/N · b.
    """
    rounds = wire_bytes(compression, model.shapes, num_ranks, model.element_bytes)
    factors = {SUM: 1.0, GATHER: num_ranks / 2}
    total = sum(size * factors.get(kind, 0.5) for kind, size in rounds)
    return total / max(model.total_bytes, 1), len(rounds)
