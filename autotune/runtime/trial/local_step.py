"""One step of this rank alone before a trial's first collective, where the device's memory has an end.

A rank that runs out of memory inside a collective leaves the others waiting for it. So each rank first computes its share
twice without communication: forward, backward and optimizer, which then holds its state, and the same again beside buffers
for all gradients. The ranks then agree over the control plane; where one has failed, none opens a group. What this step
does not hold: the residuals of codecs, and the micro-batches in flight of a pipeline, whose plans are not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from autotune.runtime.data.micro_batches import MicroBatches, loss_of
from autotune.runtime.device import handle
from autotune.runtime.train.trainer import RankContext, to_device
from autotune.runtime.trial.device_memory import give_memory_back
from autotune.runtime.trial.outcome import Fault, fault_of
from autotune.workloads.plan import Plan
from autotune.workloads.serial import to_data
from autotune.workloads.workload import Workload, loop_of

Share = Callable[[Any, float], list[Any]]
"""This rank's message to the messages of all ranks, within a time limit; raises RankSilentError."""


def fault_before_collectives(
    workload: Workload, plans: Sequence[Plan], rank_context: RankContext, share: Share, *, seed: int
) -> Fault | None:
    """Why these plans cannot run, on this rank or on another one; None where all ranks can run them. Called by all ranks."""
    own: Fault | None = None
    used = [plan for plan in plans if not plan.is_placed and rank_context.rank in plan.used_ranks]
    batches = {plan.batch: plan for plan in used}
    try:
        for plan in batches.values():
            local_step(workload, plan, rank_context, seed=seed)
    except Exception as error:  # noqa: BLE001 - a user's model may raise anything
        own = fault_of(error)
        give_memory_back(handle(rank_context.torch_device), error)
    else:
        give_memory_back(handle(rank_context.torch_device))
    faults = share(to_data(own), rank_context.timeout_s)
    failed = [rank for rank, fault in enumerate(faults) if fault is not None]
    if own is not None or not failed:
        return own
    return Fault(kind="peer", message=f"rank {failed[0]} cannot run its share", at_s=faults[failed[0]]["at_s"])


def local_step(workload: Workload, plan: Plan, rank_context: RankContext, *, seed: int) -> None:
    """Compute this rank's share of a step twice; its model and optimizer are dropped."""
    device, loop = rank_context.torch_device, loop_of(workload)
    torch.manual_seed(seed)
    model = workload.model().to(device)
    optimizer = workload.optimizer(model)
    micro_batches = MicroBatches(workload, loop, plan.batch.samples, rank_context.rank, seed=seed)
    try:
        passes = micro_batches.take(0) or [micro_batches.idle()]
        largest = max(passes, key=lambda one: one.samples)
        buffers: list[torch.Tensor] = []
        for _ in range(2):
            loss = loss_of(workload, loop, model, to_device(largest.batch, handle(device)), device)
            loss.backward()
            optimizer.step()
            if not buffers:
                buffers = [torch.empty_like(p) for p in model.parameters() if p.requires_grad]
        handle(device).synchronize()  # what has failed on it is raised here
    finally:
        micro_batches.batches.close()
