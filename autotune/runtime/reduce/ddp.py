"""Torch's DistributedDataParallel, unmodified, behind the interface of the other reducers: the baseline."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from autotune.runtime.reduce.bucketed import RecordingGroup
from autotune.runtime.waits import Waits
from autotune.workloads.plan import DDP_BUCKET_BYTES, MIB


class DdpReducer(RecordingGroup):
    """DDP averages over ranks, so a rank's loss is weighted by N·b_i/B. Its hooks need a backward pass on every rank.

    The models of all ranks must hold the same values already.
    """

    needs_backward = waits_in_backward = True

    def __init__(self, model: nn.Module, bucket_bytes: int, codec: str, group: dist.ProcessGroup) -> None:
        # If unset, DDP's cap is 25 MiB with a small first bucket that is sent early; if set, it holds for all buckets.
        cap_mb = None if bucket_bytes == DDP_BUCKET_BYTES else bucket_bytes / MIB
        ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=cap_mb, init_sync=False)
        self.model: nn.Module = ddp
        self.no_sync: Callable[[], AbstractContextManager[None]] = ddp.no_sync
        self._group, self.stalls = group, Waits()
        self.loss_scale = float(group.size())
        self.buffer_bytes = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        if codec == "fp16":
            ddp.register_comm_hook(group, fp16_compress_hook)

    def begin(self) -> None:
        self.model.zero_grad()

    def finish(self) -> None:
        """The backward pass has waited already."""

    def flush(self) -> None:
        """Parameters are always up to date."""

    def owed(self) -> dict[str, Tensor]:
        """DDP does not show what its hook has rounded off."""
        return {}

    def owe(self, owed: dict[str, Tensor]) -> None:
        """Discard it: DDP has no way to add it."""

    def detach(self, error: BaseException | None = None) -> None:  # noqa: ARG002 - peers notice it by the group
        del self.model, self.no_sync, self._group
