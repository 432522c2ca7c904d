"""Gradients summed over ranks in buckets, overlapped with backward.

Gradients live in flat buckets, filled from the last parameter to the first, and a bucket is sent when its last gradient
has been accumulated. Every rank posts the same buckets in the same order, also a rank that has no samples (zeros) or
parameters that took no part. The loss is weighted by b_i/B before backward, so the plain sum is the exact gradient of
the whole batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor, nn

from autotune.profilers.ranges import Ranges
from autotune.runtime.codecs.factory import UnitShape, make_codec
from autotune.runtime.codecs.protocol import Codec
from autotune.runtime.reduce.fusion_buffer import FlatGradients
from autotune.runtime.reduce.owed import collect, hand_over
from autotune.runtime.transport.traced_group import Delivery, TracedGroup, taken
from autotune.workloads.plan import Plan
from autotune.workloads.plan.buckets import bucket_indices


class Bucket(FlatGradients):
    """Gradients that are sent once all of them are there."""

    def __init__(self, parameters: Sequence[nn.Parameter], codec: Codec) -> None:
        super().__init__(parameters)
        self.codec = codec
        self.missing = len(parameters)
        self.ready_s: float | None = None

    def reset(self) -> None:
        """Zero the gradients in place and make sure that the parameters still point here."""
        self.flat.zero_()
        self.missing = len(self.parameters)
        self.point()


class Reducer(Protocol):
    """Sums gradients over ranks. Call `begin` before forward and `finish` after backward; then every parameter's
    gradient is that of the whole batch, if each rank's mean loss was weighted by `loss_scale` · b_i/B.
    """

    model: nn.Module
    """What forward must be called on."""
    loss_scale: float
    needs_backward: bool
    """Whether also a rank without samples must run forward and backward."""
    buffer_bytes: int
    """Memory held beside the gradients."""

    @property
    def waits_in_backward(self) -> bool:
        """Whether a backward pass returns only when all gradients have arrived."""

    @property
    def stalled_s(self) -> float:
        """How long forward passes have waited for parameters since `sent` was last asked."""

    def begin(self) -> None:
        """A step starts: its gradients are zero."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Passes inside only accumulate; what they leave is exchanged with the gradients of the pass after it."""

    def finish(self) -> None:
        """Wait until every gradient is the sum over all ranks, unless `optimizer.step()` sees to that."""

    def record(self, *, on: bool) -> None:
        """Note every exchange from here on."""

    def sent(self) -> Sent:
        """What was exchanged since the last call."""

    def flush(self) -> None:
        """Wait until every parameter is up to date."""

    def owed(self) -> dict[str, Tensor]:
        """What lossy codecs have left out so far, over all ranks, by parameter; called by all ranks together."""

    def owe(self, owed: dict[str, Tensor]) -> None:
        """Add this to the gradients that follow; called by all ranks together."""

    def detach(self, error: BaseException | None = None) -> None:
        """Let go of the model and the group; `error`: why, if this rank has failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """What a reducer did in a step."""

    deliveries: tuple[Delivery, ...] = ()
    """In the order they were posted, where they are noted."""
    late_s: float = 0.0
    """Emulated links: how far the last real collective was behind."""
    stalls: tuple[tuple[float, float], ...] = ()
    """When the forward pass waited for parameters, from and to, where it is noted."""
    stalled_s: float = 0.0
    """How long it did."""


def sent_over(group: Any) -> Sent:
    """What a group has noted since it was last asked."""
    deliveries = taken(group)
    return Sent(deliveries=tuple(deliveries), late_s=max((sent.late_s for sent in deliveries[-1:]), default=0.0))


class BucketReducer:
    """Our own: buckets, codecs, ranks without samples."""

    loss_scale = 1.0
    needs_backward = waits_in_backward = False
    stalled_s = 0.0

    def __init__(self, model: nn.Module, plan: Plan, group: dist.ProcessGroup, ranges: Ranges) -> None:
        self.model = model
        self._group = group
        self._ranges = ranges
        self.buckets = [
            Bucket(parameters, make_codec(plan.compression, UnitShape.of(parameters, group)))
            for parameters in assign_buckets(list(model.parameters()), plan.comm.bucket_bytes)
        ]
        self._posted: list[tuple[Bucket, Tensor, Any]] = []
        self._syncs = True
        self.buffer_bytes = sum(bucket.codec.buffer_bytes(bucket.flat) for bucket in self.buckets)
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._hook(bucket))
            for bucket in self.buckets
            for parameter in bucket.parameters
        ]

    def begin(self) -> None:
        self._posted.clear()
        for bucket in self.buckets:
            bucket.reset()
            bucket.ready_s = None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """No bucket is complete while gradients only accumulate."""
        self._syncs = False
        try:
            yield
        finally:
            self._syncs = True

    def finish(self) -> None:
        """Post what backward left, and wait for all of it."""
        for bucket in self.buckets[len(self._posted) :]:
            self._post(bucket)
        for index, (bucket, wire, work) in enumerate(self._posted):
            with self._ranges.bucket("wait for", index, wire):
                work.wait()
            with self._ranges.bucket("decode", index, bucket.flat):
                bucket.codec.decode([wire], bucket.flat)

    def record(self, *, on: bool) -> None:
        if isinstance(self._group, TracedGroup):
            self._group.recording = on

    def sent(self) -> Sent:
        sent = sent_over(self._group)
        noted = [
            replace(delivery, ready_s=bucket.ready_s)
            for delivery, bucket in zip(sent.deliveries, self.buckets, strict=False)
        ]
        return replace(sent, deliveries=tuple(noted))

    def flush(self) -> None:
        """They always are."""

    def owed(self) -> dict[str, Tensor]:
        return collect(self.buckets, self._names(), self._group)

    def owe(self, owed: dict[str, Tensor]) -> None:
        hand_over(self.buckets, self._names(), owed, self._group.rank())

    def _names(self) -> dict[int, str]:
        return {id(parameter): name for name, parameter in self.model.named_parameters()}

    def detach(self, error: BaseException | None = None) -> None:  # noqa: ARG002 - peers learn of it from the group
        for handle in self._handles:
            handle.remove()
        self._posted.clear()

    def _hook(self, bucket: Bucket) -> Any:
        def hook(_parameter: Tensor) -> None:
            if not self._syncs:
                return
            bucket.missing -= 1
            if bucket.missing == 0:
                bucket.ready_s = time.perf_counter()
            # In order only: a later bucket that is complete waits for the earlier ones, as on every other rank.
            while len(self._posted) < len(self.buckets) and self.buckets[len(self._posted)].missing == 0:
                self._post(self.buckets[len(self._posted)])

        return hook

    def _post(self, bucket: Bucket) -> None:
        index = len(self._posted)
        bucket.add_carried()
        with self._ranges.bucket("encode", index, bucket.flat):
            (wire,) = bucket.codec.encode(bucket.flat).tensors
        with self._ranges.bucket("post", index, wire):
            self._posted.append((bucket, wire, self._group.allreduce([wire], dist.AllreduceOptions())))


def assign_buckets(parameters: Sequence[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Parameters from last to first; one dtype and device per bucket."""
    trained = [parameter for parameter in reversed(parameters) if parameter.requires_grad]
    sizes = [parameter.numel() * parameter.element_size() for parameter in trained]
    kinds = [(parameter.dtype, parameter.device) for parameter in trained]
    return [[trained[index] for index in bucket] for bucket in bucket_indices(bucket_bytes, sizes, kinds)]
