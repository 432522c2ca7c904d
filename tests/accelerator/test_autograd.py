"""The backward pass on the fake accelerator: threads, streams and devices as the engine chooses them for CUDA."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import tests.accelerator.fgpu  # noqa: F401
from tests.accelerator import races

fgpu = torch.get_device_module("fgpu")


class Noted(torch.autograd.Function):
    """Notes where its backward pass runs."""

    seen: list

    @staticmethod
    def forward(ctx, given):
        return given * 2

    @staticmethod
    def backward(ctx, grad):
        Noted.seen.append((fgpu.current_device(), fgpu.current_stream(), threading.get_ident()))
        return grad * 2


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    Noted.seen = []


def test_a_node_runs_on_the_device_and_stream_of_its_forward_operation_in_a_thread_of_the_device() -> None:
    stream = fgpu.Stream("fgpu:2")
    given = torch.ones(3, device="fgpu:2", requires_grad=True)
    stream.wait_stream(fgpu.current_stream(2))
    with fgpu.stream(stream):
        on_stream = Noted.apply(given).sum()
    on_stream.backward()
    other = torch.ones(3, device="fgpu:1", requires_grad=True)
    Noted.apply(other).sum().backward()
    (device, used, thread), (device_1, used_1, thread_1) = Noted.seen
    assert (device, used) == (2, stream)
    assert (device_1, used_1) == (1, fgpu.default_stream(1))
    assert len({thread, thread_1, threading.get_ident()}) == 3


def test_the_engine_orders_nodes_on_different_streams_and_the_caller() -> None:
    side, model = fgpu.Stream(), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).to("fgpu")
    given = torch.ones(2, 4, device="fgpu")
    side.wait_stream(fgpu.current_stream())
    hidden = model[:2](given)
    side.wait_stream(fgpu.current_stream())
    with fgpu.stream(side):
        loss = model[2](hidden).sum()
    fgpu.current_stream().wait_stream(side)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert model[0].weight.isfinite().all()


def test_a_gradient_that_a_hook_hands_to_another_stream_needs_an_event() -> None:
    side, weight = fgpu.Stream(), torch.ones(3, device="fgpu", requires_grad=True)
    errors = []

    def hook(parameter, *, waits):
        event = fgpu.current_stream().record_event()
        with fgpu.stream(side):
            if waits:
                side.wait_event(event)
            try:
                parameter.grad * 2
            except races.RaceError as error:
                errors.append(error)

    for waits in (True, False):
        handle = weight.register_post_accumulate_grad_hook(lambda parameter, waits=waits: hook(parameter, waits=waits))
        (weight * 2).sum().backward()
        handle.remove()
        assert len(errors) == (0 if waits else 1)
        fgpu.synchronize()
