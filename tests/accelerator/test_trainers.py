"""Trainers on fake accelerators compute what they compute on CPUs: every reducer, codec and way for tensors to travel."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan
from tests.accelerator import jobs

REDUCERS: dict[str, dict[str, Any]] = {
    "ddp": {"reducer": "ddp"},
    "bucketed": {"bucket_bytes": 4096},
    "averaged": {"reducer": "averaged", "average_every": 2},
    "scheduled": {"reducer": "scheduled", "partition_bytes": 2048, "credit_bytes": 8192, "bucket_bytes": 4096},
    "overlap": {
        "reducer": "scheduled",
        "partition_bytes": 2048,
        "credit_bytes": 8192,
        "bucket_bytes": 4096,
        "crosses_steps": True,
    },
}
CASES = [
    ("mlp", "bucketed", "none"),
    ("mlp", "overlap", "none"),
    ("encoder", "overlap", "none"),
    ("encoder", "ddp", "none"),
    ("gpt", "scheduled", "none"),
    ("resnet", "overlap", "none"),
    ("mlp", "averaged", "none"),
    ("mlp", "scheduled", "topk"),
    ("mlp", "overlap", "int8"),
    ("mlp", "overlap", "powersgd"),
    ("mlp", "bucketed", "fp16"),
    ("mlp", "ddp", "fp16"),
]


def plan_of(job: Any, reducer: str, codec: str) -> Plan:
    first = job.global_batch // 2 + 1
    return Plan(
        batch=BatchPlan(samples=(first, job.global_batch - first), sync_norm=reducer != "averaged"),
        comm=CommPlan(**REDUCERS[reducer]),
        compression=CompressionPlan(codec=codec),
    )


@pytest.mark.parametrize("over", [jobs.STAGED, jobs.NCCL])
@pytest.mark.parametrize(("model", "reducer", "codec"), CASES)
def test_training_is_that_on_cpus(model: str, reducer: str, codec: str, over: str) -> None:
    job = jobs.workload(model)
    plan = plan_of(job, reducer, codec)
    assert jobs.away(jobs.device_ranks(job, plan, 4, over=over), jobs.cpu_ranks(job, plan, 4)) < 1e-10
