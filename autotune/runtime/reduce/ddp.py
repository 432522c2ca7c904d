"""Torch's DistributedDataParallel behind the same interface as our own reducer: the baseline, unmodified."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from autotune.runtime.reduce.bucketed import Sent, sent_over
from autotune.runtime.transport.traced_group import TracedGroup
from autotune.workloads.plan import DDP_BUCKET_BYTES, MIB


class DdpReducer:
    """DDP averages over ranks, so a rank's loss is weighted by N·b_i/B; its hooks need a backward on every rank. All ranks hold
    the same values already.
    """

    needs_backward = waits_in_backward = True
    stalled_s = 0.0

    def __init__(self, model: nn.Module, bucket_bytes: int, codec: str, group: dist.ProcessGroup) -> None:
        # Left unset, DDP's cap is 25 MiB with a small first bucket that leaves early; set, it holds for all buckets.
        cap_mb = None if bucket_bytes == DDP_BUCKET_BYTES else bucket_bytes / MIB
        ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=cap_mb, init_sync=False)
        self.model: nn.Module = ddp
        self.no_sync: Callable[[], AbstractContextManager[None]] = ddp.no_sync
        self._group = group
        self.loss_scale = float(group.size())
        self.buffer_bytes = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        if codec == "fp16":
            ddp.register_comm_hook(group, fp16_compress_hook)

    def begin(self) -> None:
        self.model.zero_grad()

    def finish(self) -> None:
        """Backward has waited already."""

    def record(self, *, on: bool) -> None:
        if isinstance(self._group, TracedGroup):
            self._group.recording = on

    def sent(self) -> Sent:
        return sent_over(self._group)

    def flush(self) -> None:
        """They always are."""

    def owed(self) -> dict[str, Tensor]:
        """Nothing that could be known."""
        return {}

    def owe(self, owed: dict[str, Tensor]) -> None:
        """What was owed is given up."""

    def detach(self, error: BaseException | None = None) -> None:  # noqa: ARG002 - peers learn of it from the group
        del self.model, self.no_sync, self._group
