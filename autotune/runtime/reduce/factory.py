"""The reducer that a plan names."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autotune.runtime.reduce.bucketed import BucketReducer, Reducer
from autotune.runtime.reduce.cross_step import CrossStepReducer
from autotune.runtime.reduce.ddp import DdpReducer
from autotune.runtime.reduce.local_sgd import AveragingReducer
from autotune.runtime.reduce.scheduled import ReducerSettings
from autotune.workloads.plan import Plan, ReducerKind


def make_reducer(
    model: nn.Module, optimizer: Optimizer, plan: Plan, group: dist.ProcessGroup, settings: ReducerSettings
) -> Reducer:
    """Called by all ranks together; their models hold the same values."""
    if plan.comm.reducer == ReducerKind.DDP:
        return DdpReducer(model, plan.comm.bucket_bytes, plan.compression.codec, group)
    if plan.comm.is_scheduled:
        return CrossStepReducer(model, optimizer, plan, group, settings)
    if plan.comm.reducer == ReducerKind.AVERAGED:
        return AveragingReducer(model, optimizer, plan, group)
    return BucketReducer(model, plan, group, settings.ranges)
