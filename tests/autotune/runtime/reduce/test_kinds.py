"""Kinds of layers with a codec of their own: runtime and simulator cut alike, and other kinds are sent losslessly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from autotune.results.store.record import WorkloadInfo
from autotune.runtime.codecs.factory import BufferShape
from autotune.runtime.reduce.scheduled import ReducerSettings, ScheduledReducer
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.workloads.capture import capture
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, KindCodec, Plan
from autotune.workloads.plan.codecs import wire_bytes
from tests.gloo_ranks import gloo_group, on_ranks, rank_network

WIDTH = 64


def model_of() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH, bias=False), nn.LayerNorm(WIDTH)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 3)).double()
    for parameter in model.parameters():
        parameter.data.normal_(generator=generator)
    return model


def plan_of(*by_kind: KindCodec, num_ranks: int = 4, codec: str = "none", partition_bytes: int = 3000) -> Plan:
    return Plan(
        batch=BatchPlan(samples=(2,) * num_ranks),
        comm=CommPlan(reducer="scheduled", partition_bytes=partition_bytes),
        compression=CompressionPlan(codec=codec, by_kind=by_kind),
    )


LINEAR_FP16 = KindCodec(kind="Linear", codec="fp16")


@pytest.mark.parametrize(
    "by_kind", [(LINEAR_FP16,), (KindCodec(kind="Linear", codec="topk"), KindCodec(kind="LayerNorm", codec="bf16"))]
)
@pytest.mark.parametrize("partition_bytes", [500, 3000, 10**6])
def test_simulator_and_runtime_read_the_plan_alike(by_kind: tuple[KindCodec, ...], partition_bytes: int) -> None:
    model, plan = model_of(), plan_of(*by_kind, partition_bytes=partition_bytes)
    rows = torch.randn(8, WIDTH, dtype=torch.float64)
    graph = capture(model, lambda n: model(rows[:n]).square().mean())
    info = WorkloadInfo(
        name="kinds", options={}, fingerprint="", global_batch=8, param_bytes=graph.param_bytes, flops_per_sample=0.0
    )
    simulated = Simulator(info, graph, cost_model(graph, load_cluster("mixed4")))
    simulated.forecast(plan)
    group = gloo_group(dist.HashStore(), 0, 1)
    reducer = ScheduledReducer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, group, ReducerSettings())
    expected = 0
    for buffer in reducer.buffers:
        shapes, own = BufferShape.of(buffer.parameters, group).shapes, CompressionPlan(codec=buffer.codec.name)
        expected += max(size for _, size in wire_bytes(own, shapes, 4, 8))
    assert sum(simulated.wire_bytes(plan)) == pytest.approx(expected)
    reducer.detach()


def first_step(group: dist.ProcessGroup, plan: Plan) -> dict[str, Tensor]:
    """The gradients on one rank after a backward pass on its own rows."""
    model = model_of()
    reducer = ScheduledReducer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        plan,
        group,
        ReducerSettings(weight=1 / group.size(), network=rank_network()),
    )
    rows = torch.randn(2, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(group.rank()))
    model(rows).square().mean().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    reducer.detach()
    return found


def test_only_the_named_kind_is_rounded() -> None:
    plain: Any = on_ranks(2, lambda group: first_step(group, plan_of(num_ranks=2)))
    coded: Any = on_ranks(2, lambda group: first_step(group, plan_of(LINEAR_FP16, num_ranks=2)))
    for name, exact in plain[0].items():
        off = float((coded[0][name] - exact).norm() / exact.norm())
        is_norm = name.startswith(("1.", "3."))
        assert off < 1e-15 if is_norm else 1e-6 < off < 1e-2, (name, off)
    assert all(torch.equal(coded[0][name], coded[1][name]) for name in plain[0])


def test_a_kind_that_the_model_has_not_is_refused_with_those_it_has() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = plan_of(KindCodec(kind="Conv2d", codec="fp16"), num_ranks=1)
    with pytest.raises(SpecError, match=r"kind 'Conv2d'.*LayerNorm, Linear"):
        ScheduledReducer(model, optimizer, plan, gloo_group(dist.HashStore(), 0, 1), ReducerSettings())
