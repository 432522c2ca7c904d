"""What a rank computed is taken from the device's clock; how often the host waits for the device is counted."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from autotune.runtime.train.trainer import Trainer
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from tests.accelerator import devices, jobs

SCHEDULED = CommPlan(
    reducer="scheduled", partition_bytes=2048, credit_bytes=8192, bucket_bytes=4096, crosses_steps=True
)


REDUCERS = {
    "ddp": CommPlan(reducer="ddp"),
    "bucketed": CommPlan(bucket_bytes=4096),
    "averaged": CommPlan(reducer="averaged", average_every=2),
    "scheduled": replace(SCHEDULED, crosses_steps=False),
    "scheduled with cross-step overlap": SCHEDULED,
}
IN_DEFAULT_RUN = {("ddp", jobs.NCCL), ("bucketed", jobs.STAGED), ("scheduled with cross-step overlap", jobs.NCCL)}


@pytest.mark.parametrize(
    ("name", "over"),
    [
        pytest.param(name, over, marks=() if (name, over) in IN_DEFAULT_RUN else pytest.mark.slow)
        for name in REDUCERS
        for over in (jobs.STAGED, jobs.NCCL, jobs.SHARDS)
        if over != jobs.SHARDS or name != "ddp"
    ],
)
def test_a_device_three_times_slower_computes_three_times_longer(name: str, over: str) -> None:
    """Updates of the parameters included, which with cross-step overlap run beside waits for others."""
    plan = Plan(batch=BatchPlan(samples=(32, 32)), comm=REDUCERS[name])
    for index in (0, 1):  # what counts is arithmetic, as in real models: tiny ones are made of launches
        devices.configure(index, launch_s=0.0, flops_per_s=2e10, bytes_per_s=8e9)
    ranks = jobs.device_ranks(jobs.workload("mlp"), plan, 6, over=over, slowness=(1000.0, 3000.0))
    # Two steps, of which the model may be averaged after one; those that a busy host has disturbed least.
    pairs = [[first.compute_s + second.compute_s for first, second in pairwise(rank.steps[2:])] for rank in ranks]
    fast_s, slow_s = map(min, pairs)
    assert slow_s / fast_s == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("over", [jobs.STAGED, jobs.NCCL])
@pytest.mark.parametrize("reducer", ["scheduled", "bucketed", "ddp"])
def test_the_host_waits_for_the_device_twice_a_step(reducer: str, over: str) -> None:
    """For the step's last stamp and for its loss. Threads of ours wait for single transfers, which holds up nothing."""
    job = jobs.workload("mlp")
    for bucket_bytes in (1 << 20, 2048):
        comm = replace(SCHEDULED, reducer=reducer, bucket_bytes=bucket_bytes, crosses_steps=reducer == "scheduled")
        plan = Plan(batch=BatchPlan(samples=(32, 32)), comm=comm)
        assert jobs.waits_per_step(job, plan, over)["training"] <= 2


class Recording(Trainer):
    """Records what is sent, in every step."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.record_collectives(on=True)


@pytest.mark.parametrize(
    ("reducer", "over"), [("scheduled", jobs.STAGED), ("scheduled", jobs.NCCL), ("bucketed", jobs.NCCL)]
)
def test_what_is_sent_is_ready_when_the_device_has_computed_it(
    reducer: str, over: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a trace, too: the host has launched the backward pass long before."""
    monkeypatch.setattr(jobs, "Trainer", Recording)
    comm = replace(SCHEDULED, reducer=reducer, crosses_steps=False)
    plan = Plan(batch=BatchPlan(samples=(32, 32)), comm=comm)
    for rank in jobs.device_ranks(jobs.workload("mlp"), plan, 4, over=over, slowness=(1000.0, 1000.0)):
        step = rank.steps[-1]
        assert len(step.sent.deliveries) > 2
        for sent in step.sent.deliveries:
            assert step.forward_s < sent.ready_s <= sent.posted_s + 1e-4 <= sent.end_s + 1e-4 <= step.end_s + 2e-4
        assert max(sent.ready_s for sent in step.sent.deliveries) == pytest.approx(
            step.backward_s, abs=5e-3
        )  # and the copy into its buffer
