"""Pipelines on fake accelerators compute what they compute on CPUs; activations and gradients travel by the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from autotune.runtime.device import handle
from autotune.runtime.placed.plan_trainer import PlanPipelineTrainer
from autotune.runtime.train.trainer import RankContext
from autotune.runtime.transport.staged_group import StagedGroup
from autotune.workloads.capture import capture
from autotune.workloads.plan import BatchPlan, PipelinePlan, Plan
from tests.accelerator import jobs, streams
from tests.accelerator.threads import on_device_ranks
from tests.gloo_ranks import gloo_group, on_ranks, rank_network

Trained = tuple[torch.Tensor, tuple[float, ...]]


def plan_of(job: Any, schedule: str) -> tuple[Plan, Any]:
    """Two ranks share the first stage unevenly, a third has the second."""
    model, tensors = job.model(), job.dataset().tensors
    graph = capture(model, lambda count: job.loss(model, tuple(one[:count] for one in tensors)))
    first = len(graph.ops) // 2
    stages = PipelinePlan(first_ops=(0, first), stage_ranks=((0, 1), (2,)), micro_batches=2, schedule=schedule)
    total = job.global_batch
    return Plan(batch=BatchPlan(samples=(total * 3 // 4, total // 4, total)), pipeline=stages), graph


def train(job: Any, plan: Plan, graph: Any, group: Any, device: torch.device) -> Trained:
    context = RankContext(
        rank=group.rank(),
        device=jobs.this_machine().devices[0],
        torch_device=device,
        timeout_s=60.0,
        network=rank_network(),
    )
    trainer = PlanPipelineTrainer(job, plan, group, context, seed=jobs.SEED, graph=graph)
    losses = tuple(trainer.step().loss_share for _ in range(3))
    values = torch.cat([p.detach().to("cpu").reshape(-1) for p in trainer.whole_model().parameters()])
    trainer.close()
    return values, losses


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_stages_train_as_on_cpus(schedule: str) -> None:
    job = jobs.workload("mlp")
    plan, graph = plan_of(job, schedule)
    store = dist.HashStore()

    def on_device(group: Any) -> Trained:
        device = torch.device(streams.NAME, group.rank())
        staged = StagedGroup(gloo_group(store, group.rank(), 3), handle(device))
        try:
            return train(job, plan, graph, staged, device)
        finally:
            staged.close()

    expected = on_ranks(3, lambda group: train(job, plan, graph, group, torch.device("cpu")))
    found: list[Any] = on_device_ranks(3, on_device)
    for one, other in zip(found, expected, strict=True):
        assert float((one[0] - other[0]).norm() / other[0].norm()) < 1e-10
        assert one[1] == pytest.approx(other[1], abs=1e-10)
