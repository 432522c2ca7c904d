"""What a rank computed is taken from the device's clock; how often the host waits for the device is counted."""

from __future__ import annotations

from statistics import median

import pytest

from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from tests.accelerator import jobs
from tests.accelerator.counts import counts

SCHEDULED = CommPlan(
    reducer="scheduled", partition_bytes=2048, credit_bytes=8192, bucket_bytes=4096, crosses_steps=True
)


@pytest.mark.parametrize("over", [jobs.STAGED, jobs.NCCL])
@pytest.mark.parametrize("comm", [CommPlan(bucket_bytes=4096), SCHEDULED, CommPlan(reducer="ddp")])
def test_a_device_three_times_slower_computes_three_times_longer(comm: CommPlan, over: str) -> None:
    plan = Plan(batch=BatchPlan(samples=(32, 32)), comm=comm)
    ranks = jobs.device_ranks(jobs.workload("mlp"), plan, 6, over=over, slowness=(1000.0, 3000.0))
    fast_s, slow_s = (median(step.compute_s for step in rank.steps[2:]) for rank in ranks)
    assert slow_s / fast_s == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("over", [jobs.STAGED, jobs.NCCL])
@pytest.mark.parametrize("reducer", ["scheduled", "bucketed", "ddp"])
def test_the_host_waits_for_the_device_twice_a_step(reducer: str, over: str) -> None:
    """For the step's last stamp and for its loss. Threads of ours wait for single transfers, which holds up nothing."""
    few, many = (_waits_per_step(reducer, bucket_bytes, over) for bucket_bytes in (1 << 20, 2048))
    assert max(few, many) <= 2


def _waits_per_step(reducer: str, bucket_bytes: int, over: str) -> float:
    """Of the threads that train: the difference between eight steps and four."""
    comm = CommPlan(
        reducer=reducer,
        partition_bytes=2048,
        credit_bytes=8192,
        bucket_bytes=bucket_bytes,
        crosses_steps=reducer == "scheduled",
    )
    plan = Plan(batch=BatchPlan(samples=(32, 32)), comm=comm)
    waits = []
    for num_steps in (4, 8):
        counts.reset()
        jobs.device_ranks(jobs.workload("mlp"), plan, num_steps, over=over)
        trains = ("autograd", *(f"rank {rank}" for rank in range(2)))
        waits.append(sum(number for (_, thread), number in counts.host_syncs().items() if thread in trains))
    return (waits[1] - waits[0]) / 4 / 2
