"""The reducer that a plan names."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autotune.runtime.reduce.bucketed import BucketReducer, Reducer
from autotune.runtime.reduce.cross_step import Engine
from autotune.runtime.reduce.ddp import DdpReducer
from autotune.runtime.reduce.local_sgd import AveragingReducer
from autotune.runtime.reduce.scheduled import Setting
from autotune.workloads.plan import Plan


def make_reducer(
    model: nn.Module, optimizer: Optimizer, plan: Plan, group: dist.ProcessGroup, setting: Setting
) -> Reducer:
    """Made by all ranks together, whose models hold the same values."""
    if plan.comm.reducer == "ddp":
        return DdpReducer(model, plan.comm.bucket_bytes, plan.compression.codec, group)
    if plan.comm.reducer == "scheduled":
        return Engine(model, optimizer, plan, group, setting)
    if plan.comm.reducer == "averaged":
        return AveragingReducer(model, optimizer, plan, group)
    return BucketReducer(model, plan, group, setting.ranges)
