"""Streams: what one stream writes and another one reads is waited for. The fake device notices where it is not."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from autotune.runtime.device import NO_MARK, AcceleratorHandle, handle
from autotune.runtime.reduce.cross_step import CrossStepReducer
from autotune.runtime.reduce.fusion_buffer import FusionBuffer
from autotune.runtime.reduce.scheduled import ReducerSettings
from autotune.runtime.transport import staged_group
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from tests.accelerator import jobs, streams
from tests.accelerator.threads import on_device_ranks
from tests.gloo_ranks import gloo_group, on_ranks, rank_network

pytestmark = pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
"""What torch says of any script that builds its model on one stream and trains on another; it waits between them itself."""

OVERLAP = CommPlan(reducer="scheduled", partition_bytes=2048, credit_bytes=8192, bucket_bytes=4096, crosses_steps=True)
PLAN = Plan(batch=BatchPlan(samples=(40, 24)), comm=OVERLAP)
BUCKETED = CommPlan(bucket_bytes=4096)


@pytest.mark.parametrize("on_cpu", [(1,), (0,)])
@pytest.mark.parametrize("comm", [OVERLAP, BUCKETED, dataclasses.replace(OVERLAP, crosses_steps=False)])
def test_accelerators_and_cpus_train_as_one_job(comm: CommPlan, on_cpu: tuple[int, ...]) -> None:
    job, plan = jobs.workload("mlp"), dataclasses.replace(PLAN, comm=comm)
    assert jobs.away(jobs.device_ranks(job, plan, 4, on_cpu=on_cpu), jobs.cpu_ranks(job, plan, 4)) < 1e-10


NO_WAIT = property(lambda _: NO_MARK, lambda _, __: None)
LEFT_OUT = [(FusionBuffer, "written", OVERLAP), (staged_group._Staged, "ready", BUCKETED)]


@pytest.fixture
def _slow_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients arrive after the call of step(), so that another thread updates the parameters."""
    copied_out = staged_group.StagedGroup._copied_out

    def late(*arguments: Any) -> Any:
        time.sleep(0.01)
        return copied_out(*arguments)

    monkeypatch.setattr(staged_group.StagedGroup, "_copied_out", late)


@pytest.mark.usefixtures("_slow_transfers")
@pytest.mark.parametrize(("holder", "name", "comm"), LEFT_OUT)
def test_a_wait_that_is_left_out_is_noticed(
    holder: type, name: str, comm: CommPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, name, NO_WAIT, raising=False)
    with pytest.raises(Exception, match="does not wait for it"):
        jobs.device_ranks(jobs.workload("mlp"), dataclasses.replace(PLAN, comm=comm), 4, slowness=(300.0, 300.0))


@pytest.mark.usefixtures("_slow_transfers")
def test_an_update_waits_for_what_reads_the_old_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _noticed(_on_streams(OVERLAP)) == ""
    monkeypatch.setattr(FusionBuffer, "requested", NO_WAIT, raising=False)
    assert "does not wait for it" in _noticed(_on_streams(OVERLAP))


def test_gradients_are_sent_once_the_device_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AcceleratorHandle, "when_reached", lambda _, __, call, ___: call())
    with pytest.raises(Exception, match="does not wait for it"):
        jobs.device_ranks(jobs.workload("mlp"), PLAN, 4, over=jobs.NCCL, slowness=(300.0, 300.0))


@pytest.mark.parametrize("crosses_steps", [True, False])
def test_a_script_may_train_on_a_stream_of_its_own(*, crosses_steps: bool) -> None:
    comm = dataclasses.replace(OVERLAP, crosses_steps=crosses_steps)
    on_cpu = on_ranks(2, lambda group: _script(torch.device("cpu"), group.rank(), group, comm))
    found = _on_streams(comm)
    assert [float((a - b).norm()) for a, b in zip(found, on_cpu, strict=True)] == pytest.approx([0.0, 0.0], abs=1e-10)


def _noticed(results: list[Any]) -> str:
    """The texts of errors."""
    return " ".join(str(result) for result in results if isinstance(result, Exception))


def _on_streams(comm: CommPlan) -> list[Any]:
    """What two ranks have after training on a stream of their own, or how they failed."""
    store = dist.HashStore()

    def on_stream(group: Any) -> torch.Tensor:
        device = torch.device(streams.NAME, group.rank())
        staged = staged_group.StagedGroup(gloo_group(store, group.rank(), 2), handle(device))
        try:
            return _script(device, group.rank(), staged, comm)
        finally:
            staged.close()

    return on_device_ranks(2, on_stream)


def _script(device: torch.device, rank: int, group: Any, comm: CommPlan) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3)).double()
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    plan = Plan(batch=BatchPlan(samples=(1, 1)), comm=comm)
    settings = ReducerSettings(weight=0.5, network=rank_network(), on_accelerators=device.type != "cpu")
    reducer = CrossStepReducer(model, optimizer, plan, group, settings)
    try:
        return _loop(device, rank, model, optimizer, reducer)
    except Exception as error:
        reducer.detach(error)
        raise


def _loop(device: torch.device, rank: int, model: nn.Module, optimizer: Any, reducer: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    used, norms = handle(device), []
    begun, stream = used.mark(), used.new_stream()
    with used.on(stream):
        begun.wait()
        drawn = [torch.randn(8, 6, generator=generator, dtype=torch.float64) for _ in range(6)]
        for inputs in [one.to(device) for one in drawn]:  # copied first: each copy makes the host wait for the device
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            norms.append(torch.stack([p.detach().norm() for p in model.parameters()]))
            optimizer.step()
        reducer.flush()
        found = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).to("cpu")
    reducer.detach()
    return found
