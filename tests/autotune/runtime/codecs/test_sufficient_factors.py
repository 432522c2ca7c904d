"""Sufficient factors save bytes and leave the gradient as it is."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from autotune.runtime.reduce.cross_step import CrossStepReducer
from autotune.runtime.reduce.scheduled import ReducerSettings
from autotune.runtime.transport.wrapped_group import WrappedGroup
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan
from tests.gloo_ranks import on_ranks, rank_network


class Counting(WrappedGroup):
    """What this rank puts on the wire; of an all-reduce, a ring's share."""

    num_bytes = 0

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        self.num_bytes += 2 * (self.size() - 1) * tensors[0].nbytes // self.size()
        return self._inner.allreduce(tensors, opts)

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:  # noqa: N803 - torch's name
        self.num_bytes += tensors[0].nbytes
        return super().send(tensors, dstRank, tag)


def gradient_and_bytes(width: int, rows: tuple[int, ...], factors: tuple[str, ...]) -> tuple[torch.Tensor, int]:
    """Of a square Linear layer under uneven rows, on as many ranks; the layer before it makes its inputs need gradients."""
    weights = torch.randn(width, width, generator=torch.Generator().manual_seed(1))
    drawing = threading.Lock()

    def run(group: dist.ProcessGroup) -> tuple[torch.Tensor, int]:
        counting = Counting(group)
        with drawing:
            model = nn.Sequential(nn.Linear(width, width))
        with torch.no_grad():
            model[0].weight.copy_(weights)
            model[0].bias.zero_()
        plan = Plan(
            batch=BatchPlan(samples=rows),
            comm=CommPlan(reducer="scheduled", partition_bytes=2**24, credit_bytes=2**30),
            compression=CompressionPlan(factors=factors),
        )
        settings = ReducerSettings(weight=rows[group.rank()] / sum(rows), timeout_s=60, network=rank_network())
        reducer = CrossStepReducer(model, torch.optim.SGD(model.parameters(), lr=0.0), plan, counting, settings)
        x = torch.randn(sum(rows), width, generator=torch.Generator().manual_seed(2))
        start = sum(rows[: group.rank()])
        counting.num_bytes = 0
        model(x[start : start + rows[group.rank()]]).square().mean().backward()
        reducer.detach()
        gradient = model[0].weight.grad
        assert gradient is not None
        return gradient, counting.num_bytes

    found = on_ranks(len(rows), run, timeout_s=60)
    assert all(isinstance(one, tuple) for one in found), found
    assert all(torch.equal(one[0], found[0][0]) for one in found)
    return found[0][0], sum(one[1] for one in found)


@pytest.mark.parametrize("rows", [(8, 8, 8, 8), (13, 9, 7, 3), (32, 0, 0, 0)])
def test_fewer_bytes_and_the_same_gradient(rows: tuple[int, ...]) -> None:
    summed, all_bytes = gradient_and_bytes(256, rows, ())
    made, factor_bytes = gradient_and_bytes(256, rows, ("0",))
    assert float((summed - made).norm() / summed.norm()) < 1e-5
    assert factor_bytes == 3 * sum(rows) * 2 * 256 * 4
    assert all_bytes > 7 * factor_bytes


@pytest.mark.slow
@pytest.mark.parametrize("rows", [(32, 32, 32, 32), (52, 36, 27, 13)])
def test_a_layer_of_4096_by_4096_takes_a_thirtieth_of_the_bytes(rows: tuple[int, ...]) -> None:
    summed, all_bytes = gradient_and_bytes(4096, rows, ())
    made, factor_bytes = gradient_and_bytes(4096, rows, ("0",))
    assert float((summed - made).norm() / summed.norm()) < 1e-5
    assert all_bytes >= 30 * factor_bytes
