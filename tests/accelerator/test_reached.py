"""What is done once a device has reached a point: an error of the device, or of what is done then, ends the job with its cause."""

from __future__ import annotations

import queue
from typing import Any

import pytest
import torch

from autotune.runtime.device import Stamp, handle
from autotune.runtime.errors import PeerLostError
from autotune.runtime.reduce.coordinator import Follower
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from tests.accelerator import devices, jobs
from tests.gloo_ranks import on_networks

LIMIT_S = 10.0


class Failing(Stamp):
    """A point that a device never reaches, since it has failed."""

    @property
    def seconds(self) -> float:
        raise RuntimeError("device lost")


def fail() -> None:
    raise ValueError("out of luck")


def test_an_error_is_handed_over_and_later_points_are_still_reached() -> None:
    devices.set_count(1)
    device = handle(torch.device("fgpu", 0))
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    device.when_reached(device.stamp(), fail, found.put)
    device.when_reached(Failing(0.0), fail, found.put)
    device.when_reached(device.stamp(), lambda: found.put("reached"), found.put)
    assert [str(found.get(timeout=LIMIT_S)) for _ in range(3)] == ["out of luck", "device lost", "reached"]


def test_on_the_cpu_the_error_is_raised_at_once() -> None:
    device = handle(torch.device("cpu"))
    with pytest.raises(ValueError, match="out of luck"):
        device.when_reached(device.stamp(), fail, print)


@pytest.mark.parametrize("crosses_steps", [False, True])
def test_a_rank_that_cannot_say_that_a_gradient_is_ready_ends_the_job(
    crosses_steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 raises the cause, and rank 0 names it; neither waits for its time limit, a minute."""

    def refuse(*_: object) -> None:
        raise ValueError("out of luck")

    monkeypatch.setattr(Follower, "mark_ready", refuse)
    comm = CommPlan(reducer="scheduled", bucket_bytes=4096, crosses_steps=crosses_steps)
    plan, job = Plan(batch=BatchPlan(samples=(32, 32)), comm=comm), jobs.workload("mlp")
    store = jobs.dist.HashStore()
    devices.set_count(2)
    first, second = on_networks(
        2, lambda network: jobs._train_device(job, plan, 3, network.rank, store, jobs.STAGED, is_cpu=False)
    )
    assert isinstance(second, ValueError)
    assert isinstance(first, PeerLostError)
    assert "ValueError: out of luck" in str(first)
