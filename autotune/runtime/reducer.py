"""Gradients summed over ranks in buckets, overlapped with backward.

Gradients live in flat buckets, filled from the last parameter to the first, and a bucket is sent when its last gradient
has been accumulated. Every rank posts the same buckets in the same order, also a rank that has no samples (zeros) or
parameters that took no part. The loss is weighted by b_i/B before backward, so the plain sum is the exact gradient of
the whole batch.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autotune.runtime.codec import Codec, make_codec
from autotune.runtime.ddp import DdpReducer
from profilers.ranges import Ranges
from workloads.buckets import bucket_indices
from workloads.plan import Plan


class Bucket:
    """Some parameters' gradients, side by side in one tensor."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.flat = torch.zeros(
            sum(p.numel() for p in parameters), dtype=parameters[0].dtype, device=parameters[0].device
        )
        self._views = [
            view.view_as(p)
            for p, view in zip(parameters, self.flat.split([p.numel() for p in parameters]), strict=True)
        ]
        self.missing = len(parameters)

    def reset(self) -> None:
        """Zero the gradients in place and make sure that the parameters still point here."""
        self.flat.zero_()
        self.missing = len(self.parameters)
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view


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
    ready_s: list[float]
    """For each bucket of the step, in the order they are posted: when its last gradient was there. Empty if not known."""

    def begin(self) -> None:
        """A step starts: gradients are zero, nothing is under way."""

    def finish(self) -> None:
        """Wait until every gradient is the sum over all ranks."""

    def detach(self) -> None:
        """Let go of the model and the group."""


def make_reducer(model: nn.Module, plan: Plan, group: dist.ProcessGroup, ranges: Ranges) -> Reducer:
    """The reducer that the plan names. Ours tells a profiler what it does with each bucket; DDP has ranges of its own."""
    comm, codec = plan.comm, plan.compression.codec
    if comm.reducer == "ddp":
        return DdpReducer(model, comm.bucket_bytes, codec, group)
    return BucketReducer(model, comm.bucket_bytes, make_codec(codec), group, ranges)


class BucketReducer:
    """Our own: buckets, codecs, ranks without samples."""

    loss_scale = 1.0
    needs_backward = False

    def __init__(
        self, model: nn.Module, bucket_bytes: int, codec: Codec, group: dist.ProcessGroup, ranges: Ranges
    ) -> None:
        self.model = model
        self._group = group
        self._ranges = ranges
        share_initial_values(model, group)
        self._codec = codec
        self.buckets = [Bucket(p) for p in assign_buckets(list(model.parameters()), bucket_bytes)]
        self._posted: list[tuple[Bucket, Tensor, Any]] = []
        self.ready_s: list[float] = []
        self.buffer_bytes = sum(codec.buffer_bytes(bucket.flat) for bucket in self.buckets)
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._hook(index, bucket))
            for index, bucket in enumerate(self.buckets)
            for parameter in bucket.parameters
        ]

    def begin(self) -> None:
        self._posted.clear()
        self.ready_s = [math.inf] * len(self.buckets)
        for bucket in self.buckets:
            bucket.reset()

    def finish(self) -> None:
        """Post what backward left, and wait for all of it."""
        for bucket in self.buckets[len(self._posted) :]:
            self._post(bucket)
        for index, (bucket, wire, work) in enumerate(self._posted):
            with self._ranges.bucket("wait for", index, wire):
                work.wait()
            with self._ranges.bucket("decode", index, bucket.flat):
                self._codec.decode(wire, bucket.flat)

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._posted.clear()

    def _hook(self, index: int, bucket: Bucket) -> Any:
        def hook(_parameter: Tensor) -> None:
            bucket.missing -= 1
            if bucket.missing == 0:
                self.ready_s[index] = time.perf_counter()
            # In order only: a later bucket that is complete waits for the earlier ones, as on every other rank.
            while len(self._posted) < len(self.buckets) and self.buckets[len(self._posted)].missing == 0:
                self._post(self.buckets[len(self._posted)])

        return hook

    def _post(self, bucket: Bucket) -> None:
        index = len(self._posted)
        with self._ranges.bucket("encode", index, bucket.flat):
            wire = self._codec.encode(bucket.flat)
        with self._ranges.bucket("post", index, wire):
            self._posted.append((bucket, wire, self._group.allreduce([wire], dist.AllreduceOptions())))


def share_initial_values(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Every rank starts from rank 0's parameters and buffers, as with DDP: a model need not follow from the seed."""
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    for tensor in (*model.parameters(), *model.buffers()):
        alike[tensor.dtype, tensor.device].append(tensor.detach())
    for tensors in alike.values():  # one message for all of a kind: each message waits for the slowest link anew
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        group.broadcast([flat], options).wait()
        for tensor, values in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(values.view_as(tensor))


def assign_buckets(parameters: Sequence[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Parameters from last to first; one dtype and device per bucket."""
    trained = [parameter for parameter in reversed(parameters) if parameter.requires_grad]
    sizes = [parameter.numel() * parameter.element_size() for parameter in trained]
    kinds = [(parameter.dtype, parameter.device) for parameter in trained]
    return [[trained[index] for index in bucket] for bucket in bucket_indices(bucket_bytes, sizes, kinds)]
