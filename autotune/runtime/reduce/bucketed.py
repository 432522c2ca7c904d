"""Gradients summed over ranks in buckets, overlapped with the backward pass.

Gradients are views of flat buckets, filled from the last parameter to the first. A bucket is sent when its last
gradient has been accumulated. Every rank posts the same buckets in the same order, also a rank without samples (zeros)
or with unused parameters. The loss is weighted by b_i/B before backward, so the plain sum is the exact gradient of the
whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor, nn

from autotune.profilers.ranges import Ranges
from autotune.runtime.codecs.factory import BufferShape, make_codec
from autotune.runtime.codecs.protocol import Codec
from autotune.runtime.device import CPU, Stamp, handle_of
from autotune.runtime.reduce.fusion_buffer import FlatGradients
from autotune.runtime.reduce.owed import collect, hand_over
from autotune.runtime.transport.traced_group import Delivery, set_recording, taken
from autotune.runtime.waits import Waits
from autotune.workloads.plan import Plan
from autotune.workloads.plan.buckets import bucket_indices


class Bucket(FlatGradients):
    """Gradients that are sent together once all of them have been accumulated."""

    def __init__(self, parameters: Sequence[nn.Parameter], codec: Codec) -> None:
        super().__init__(parameters)
        self.codec = codec
        self.missing = len(parameters)
        self.ready: Stamp | None = None

    def reset(self) -> None:
        """Zero the gradients in place and let every `parameter.grad` be its view again."""
        self.flat.zero_()
        self.missing = len(self.parameters)
        self.point()


class Reducer(Protocol):
    """Sums gradients over ranks. Call `begin` before forward and `finish` after backward; then every parameter's
    gradient is that of the whole batch, if each rank's mean loss was weighted by `loss_scale` · b_i/B.
    """

    model: nn.Module
    """The module to call forward on."""
    loss_scale: float
    needs_backward: bool
    """Whether a rank without samples must run forward and backward too."""
    buffer_bytes: int
    """Memory beside the gradients."""

    @property
    def waits_in_backward(self) -> bool:
        """Whether a backward pass returns only when all gradients have arrived."""

    stalls: Waits
    """When forward passes have waited for parameters since the last call of `sent`."""

    def begin(self) -> None:
        """Begin a step with zero gradients."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate; the first pass after it exchanges the sum."""

    def finish(self) -> None:
        """Wait until every gradient is the sum over all ranks, unless `optimizer.step()` does."""

    def record(self, *, on: bool) -> None:
        """Record every exchange from here on."""

    def sent(self) -> Sent:
        """What was exchanged since the last call."""

    def flush(self) -> None:
        """Wait until every parameter is up to date."""

    def owed(self) -> dict[str, Tensor]:
        """What lossy codecs have left out so far, over all ranks, by parameter; called by all ranks together."""

    def owe(self, owed: dict[str, Tensor]) -> None:
        """Add `owed` to the next gradients that are sent; called by all ranks together."""

    def detach(self, error: BaseException | None = None) -> None:
        """Remove all hooks and references to the group; `error`: the failure of this rank, if any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """What a reducer has exchanged in a step."""

    deliveries: tuple[Delivery, ...] = ()
    """In the order of posting, where recorded."""
    late_s: float = 0.0
    """Emulated links: how far the last real collective was behind."""
    stalls: tuple[tuple[float, float], ...] = ()
    """When forward passes waited for parameters, from and to, where recorded."""
    stalled_s: float = 0.0
    """How long they waited."""


def sent_over(group: Any) -> Sent:
    """What a group has recorded since the last call."""
    deliveries = taken(group)
    return Sent(deliveries=tuple(deliveries), late_s=max((sent.late_s for sent in deliveries[-1:]), default=0.0))


class RecordingGroup:
    """The part of a reducer whose exchanges its process group records."""

    _group: Any

    def record(self, *, on: bool) -> None:
        set_recording(self._group, on=on)

    def sent(self) -> Sent:
        return sent_over(self._group)


class BucketReducer(RecordingGroup):
    """Buckets with codecs, also for ranks without samples. Used by one thread, that of the backward pass."""

    loss_scale = 1.0
    needs_backward = waits_in_backward = False

    def __init__(self, model: nn.Module, plan: Plan, group: dist.ProcessGroup, ranges: Ranges) -> None:
        self.model = model
        self._group = group
        self._ranges = ranges
        self.buckets = [
            Bucket(parameters, make_codec(plan.compression, BufferShape.of(parameters, group)))
            for parameters in assign_buckets(list(model.parameters()), plan.comm.bucket_bytes)
        ]
        self._device = handle_of(self.buckets[0].flat) if self.buckets else CPU
        self._posted: list[tuple[Bucket, Tensor, Any]] = []
        self._syncs = True
        self.stalls = Waits()
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
            bucket.ready = None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """No bucket is sent inside."""
        self._syncs = False
        try:
            yield
        finally:
            self._syncs = True

    def finish(self) -> None:
        """Post the buckets that the backward pass has not filled, and wait for all."""
        for bucket in self.buckets[len(self._posted) :]:
            self._post(bucket)
        for index, (bucket, wire, work) in enumerate(self._posted):
            with self._ranges.bucket("wait for", index, wire):
                work.wait()
            with self._ranges.bucket("decode", index, bucket.flat):
                bucket.codec.decode([wire], bucket.flat)

    def sent(self) -> Sent:
        sent = super().sent()
        deliveries = [
            replace(delivery, ready_s=bucket.ready.seconds if bucket.ready is not None else None)
            for delivery, bucket in zip(sent.deliveries, self.buckets, strict=False)
        ]
        return replace(sent, deliveries=tuple(deliveries))

    def flush(self) -> None:
        """Parameters are always up to date."""

    def owed(self) -> dict[str, Tensor]:
        return collect(self.buckets, self._names(), self._group)

    def owe(self, owed: dict[str, Tensor]) -> None:
        hand_over(self.buckets, self._names(), owed, self._group.rank())

    def _names(self) -> dict[int, str]:
        return {id(parameter): name for name, parameter in self.model.named_parameters()}

    def detach(self, error: BaseException | None = None) -> None:  # noqa: ARG002 - peers notice it by the group
        for handle in self._handles:
            handle.remove()
        self._posted.clear()

    def _hook(self, bucket: Bucket) -> Any:
        def hook(_parameter: Tensor) -> None:
            if not self._syncs:
                return
            bucket.missing -= 1
            if bucket.missing == 0:
                bucket.ready = self._device.stamp()
            # In order only: a full bucket waits for the earlier ones, as on every other rank.
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
    """Parameters from the last to the first; one dtype and device per bucket."""
    trained = [parameter for parameter in reversed(parameters) if parameter.requires_grad]
    sizes = [parameter.numel() * parameter.element_size() for parameter in trained]
    kinds = [(parameter.dtype, parameter.device) for parameter in trained]
    return [[trained[index] for index in bucket] for bucket in bucket_indices(bucket_bytes, sizes, kinds)]
