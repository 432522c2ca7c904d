"""Retuning on accelerators: samples leave a device that slows down while it trains, whatever sums the gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from autotune.online.controller import Controller
from autotune.results.store.decision import Decision
from autotune.runtime.control.step_directives import StepCoordinator
from autotune.runtime.train.retuned_trainer import RetunedTrainer
from autotune.runtime.train.trainer import Trainer
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from autotune.workloads.split import bounds
from tests.accelerator import devices, jobs, streams
from tests.gloo_ranks import on_networks, rank_network

SLOW_FROM, NUM_STEPS = 12, 40


@pytest.mark.parametrize(
    ("comm", "over"),
    [
        (CommPlan(bucket_bytes=4096), jobs.STAGED),
        pytest.param(CommPlan(reducer="ddp"), jobs.NCCL, marks=pytest.mark.slow),
        pytest.param(
            CommPlan(reducer="scheduled", bucket_bytes=4096, crosses_steps=True), jobs.NCCL, marks=pytest.mark.slow
        ),
    ],
)
def test_samples_leave_a_device_that_slows_down(comm: CommPlan, over: str) -> None:
    """Two equal devices, of which the second takes three times as long from a step on: 48 to 16 samples."""
    job = jobs.workload("mlp")
    plan, decisions, store = Plan(batch=BatchPlan(samples=(32, 32)), comm=comm), list[Decision](), dist.HashStore()

    def run(network: Any) -> None:
        rank, device = network.rank, torch.device(streams.NAME, network.rank)
        jobs.handle(device).bind()
        context = jobs.replace(jobs.rank_context(rank, device), on_accelerators=True)
        with jobs._group(over, store, "data", rank, 2, device) as group:
            trainer = Trainer(job, plan, group, context, seed=jobs.SEED)
            controller = Controller(plan, bounds(2, 64), 64, on_decision=decisions.append)
            coordinator = StepCoordinator(rank_network(), controller.decide if rank == 0 else None, timeout_s=60)
            retuned = RetunedTrainer(trainer, coordinator, lambda _: group)
            for step in range(NUM_STEPS):
                if rank == 1 and step == SLOW_FROM:
                    devices.configure(1, slowness=3.0)
                retuned.step()
            trainer.flush()
            retuned.close()
            trainer.close()

    devices.set_count(2)
    for index in (0, 1):
        devices.configure(index, launch_s=0.0, flops_per_s=1e7)
    for error in filter(None, on_networks(2, run)):
        raise error
    moved = [one for one in decisions if one.step > SLOW_FROM]
    assert moved, decisions
    assert moved[-1].plan.batch.samples == pytest.approx((48, 16), abs=2)
