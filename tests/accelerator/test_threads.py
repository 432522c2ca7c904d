"""Ranks as threads, each with threads of its own: gradients handed to a sender on a side stream, as reducers do it."""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

from autotune.runtime.device import AcceleratorHandle
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan
from tests.accelerator import jobs, races
from tests.accelerator.counts import counts
from tests.accelerator.models import MODELS
from tests.accelerator.threads import on_device_ranks
from tests.gloo_ranks import on_ranks

fgpu = torch.get_device_module("fgpu")


class Sender:
    """Sums gradients in a thread and on a stream of its own, while the backward pass runs."""

    def __init__(self, group: Any, leaves_out: str) -> None:
        self._group, self._leaves_out = group, leaves_out
        self._stream, self._ready = fgpu.Stream(), queue.SimpleQueue()
        self._device, self._error = fgpu.current_device(), None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def hand_over(self, parameter: torch.Tensor) -> None:
        self._ready.put((parameter.grad, fgpu.current_stream().record_event()))

    def _run(self) -> None:
        fgpu.set_device(self._device)
        try:
            with fgpu.stream(self._stream):
                while (ready := self._ready.get()) is not None:
                    gradient, event = ready
                    if self._leaves_out != "event before":
                        self._stream.wait_event(event)
                    self._group.allreduce([gradient]).wait()
        except races.RaceError as error:
            self._error = error

    def finish(self) -> None:
        """The current stream waits for all sums."""
        self._ready.put(None)
        self._thread.join()
        if self._error:
            raise self._error
        if self._leaves_out != "event after":
            fgpu.current_stream().wait_stream(self._stream)


def trained(group: Any, *, device: str, leaves_out: str = "") -> list[torch.Tensor]:
    draw, model = torch.Generator().manual_seed(group.rank()), MODELS["mlp"][0]()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    optimizer = torch.optim.SGD(model.to(device).parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        inputs, labels = torch.randn(10, 8, generator=draw), torch.randint(0, 4, (10,), generator=draw)
        sender = Sender(group, leaves_out) if device == "fgpu" else None
        hooks = [
            parameter.register_post_accumulate_grad_hook(sender.hand_over) for parameter in model.parameters() if sender
        ]
        functional.cross_entropy(model(inputs.to(device)), labels.to(device)).backward()
        if sender:
            sender.finish()
        else:
            for parameter in model.parameters():
                group.allreduce([parameter.grad]).wait()
        optimizer.step()
        optimizer.zero_grad()
        for hook in hooks:
            hook.remove()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def test_sums_on_a_side_stream_while_the_backward_pass_runs() -> None:
    fake = on_device_ranks(3, partial(trained, device="fgpu"))
    real = on_ranks(3, partial(trained, device="cpu"))
    for one, other in zip(fake, real, strict=True):
        assert not isinstance(one, Exception), one
        assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("left_out", ["event before", "event after"])
def test_an_event_that_is_left_out_is_found(left_out: str) -> None:
    found = on_device_ranks(2, partial(trained, device="fgpu", leaves_out=left_out), timeout_s=3)
    assert any(isinstance(each, races.RaceError) for each in found), found


def test_each_rank_has_its_device_and_an_exception_is_answered() -> None:
    def run(group: Any) -> Any:
        if group.rank() == 1:
            raise ValueError("one rank fails")
        return torch.ones(1, device="fgpu").device.index

    first, second, third = on_device_ranks(3, run)
    assert (first, third) == (0, 2)
    assert isinstance(second, ValueError)


@pytest.mark.parametrize("over", [jobs.STAGED, jobs.NCCL])
def test_threads_of_ours_use_the_device_of_their_rank(over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they only pin memory: with CUDA that would open a context on device 0, in every rank."""
    pinned, pin = set(), AcceleratorHandle.pinned_like

    def pinned_like(used: AcceleratorHandle, tensor: torch.Tensor) -> torch.Tensor:
        pinned.add((threading.current_thread().name, used.device.index == fgpu.current_device()))
        return pin(used, tensor)

    monkeypatch.setattr(AcceleratorHandle, "pinned_like", pinned_like)
    comm = CommPlan(reducer="scheduled", partition_bytes=2048, credit_bytes=8192, bucket_bytes=4096, crosses_steps=True)
    plan = Plan(batch=BatchPlan(samples=(40, 24)), comm=comm, compression=CompressionPlan(codec="int8"))
    jobs.device_ranks(jobs.workload("mlp"), plan, 4, over=over)
    assert counts.launches_elsewhere() == {}
    assert {is_own for _, is_own in pinned} == {True}
    assert "autotune-stage-out" in {thread for thread, _ in pinned}
