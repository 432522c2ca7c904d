"""Broadcast rank 0's parameters and buffers to all ranks, as DDP does: models need not be built from the same seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


def share_initial_values(model: nn.Module, group: dist.ProcessGroup, others: Sequence[Tensor] = ()) -> None:
    """One broadcast per dtype and device: each pays the slowest link's latency. `others`: further trained tensors."""
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    for tensor in (*model.parameters(), *model.buffers(), *others):
        real = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        alike[real.dtype, real.device].append(real)
    for tensors in alike.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        group.broadcast([flat], options).wait()
        for tensor, values in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(values.view_as(tensor))
