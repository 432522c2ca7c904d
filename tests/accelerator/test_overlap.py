"""Cross-step overlap on accelerators gains what the simulator predicts: the device's own clock, and links that are paced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from autotune.runtime.device import handle
from autotune.runtime.train.trainer import RankContext, Trainer
from autotune.runtime.transport.link_clock import LinkClocks
from autotune.runtime.transport.paced_group import PacedGroup
from autotune.runtime.transport.staged_group import StagedGroup
from autotune.workloads.capture import capture
from autotune.workloads.cluster import Cluster, Device, Host, Link
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from tests.accelerator import devices, jobs, streams
from tests.accelerator.threads import on_device_ranks
from tests.autotune.simulate.test_closed_forms import make_simulator
from tests.gloo_ranks import gloo_group, rank_network

WIDTH, NUM_LAYERS, BATCH = 128, 8, 64
FLOPS_PER_S, LINK_BYTES_PER_S = 1.5e8, 2.8e6
OVERLAP = CommPlan(
    reducer="scheduled", bucket_bytes=65536, partition_bytes=32768, credit_bytes=65536, crosses_steps=True
)


class Layers:
    """Equal layers, whose gradients take about as long to send as to compute."""

    name, global_batch, min_samples, num_workers, collate = "layers", BATCH, 1, 0, None

    def model(self) -> nn.Module:
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS)))

    def dataset(self) -> Any:
        return TensorDataset(torch.randn(512, WIDTH, generator=torch.Generator().manual_seed(0)))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch[0]).square().mean()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-3)


@pytest.mark.slow
def test_the_gain_is_that_which_the_simulator_predicts() -> None:
    job: Any = jobs.Built(Layers())
    link = Link(up_bytes_per_s=LINK_BYTES_PER_S, down_bytes_per_s=LINK_BYTES_PER_S, latency_s=1e-4)
    device = Device(name="device", flops_per_s=FLOPS_PER_S)
    cluster = Cluster(
        name="two hosts",
        hosts=tuple(Host(name=f"host{k}", devices=(device,), link=link) for k in range(2)),
        emulation="paced",
    )
    model, data = job.model(), job.dataset().tensors[0]
    graph = capture(model, lambda count: job.loss(model, (data[:count],)))
    plans = [Plan(batch=BatchPlan(samples=(32, 32)), comm=replace(OVERLAP, crosses_steps=on)) for on in (False, True)]
    simulator = make_simulator(graph, cluster, BATCH)
    predicted = [simulator.step_s(plan) for plan in plans]
    measured = [_step_s(job, plan, cluster) for plan in plans]
    print(predicted, measured)
    assert measured[0] / measured[1] == pytest.approx(predicted[0] / predicted[1], rel=0.1)
    assert predicted[0] / predicted[1] > 1.15


def _step_s(job: Any, plan: Plan, cluster: Cluster) -> float:
    store, path = dist.HashStore(), LinkClocks.create(cluster)

    def run(group: Any) -> float:
        rank = group.rank()
        device = torch.device(streams.NAME, rank)
        devices.configure(rank, flops_per_s=FLOPS_PER_S, bytes_per_s=1e12, launch_s=0.0)
        paced = PacedGroup(gloo_group(store, rank, 2), cluster, LinkClocks(cluster, path), epoch=1)
        staged = StagedGroup(paced, handle(device))
        context = RankContext(
            rank=rank,
            device=cluster.devices[rank],
            torch_device=device,
            timeout_s=60.0,
            on_accelerators=True,
            network=rank_network(),
        )
        trainer = Trainer(job, plan, staged, context, seed=jobs.SEED)
        steps = [trainer.step() for _ in range(8)]
        trainer.close()
        staged.close()
        return median(step.total_s for step in steps[3:])

    try:
        found = on_device_ranks(2, run)
    finally:
        Path(path).unlink()
    for one in found:
        if isinstance(one, Exception):
            raise one
    return max(found)
