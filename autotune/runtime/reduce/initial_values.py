"""Every rank starts from rank 0's parameters and buffers, as with DDP: a model need not follow from the seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


def share_initial_values(model: nn.Module, group: dist.ProcessGroup, others: Sequence[Tensor] = ()) -> None:
    """One message for all tensors of a kind: each message waits for the slowest link anew. `others`: what else trains."""
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
