"""What a lossy codec owes survives a change of the plan and a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from autotune.runtime.reduce.cross_step import CrossStepReducer
from tests.autotune.runtime.reduce.cross_step_jobs import BATCH, batch, mlp, own_rows, reducer_of
from tests.gloo_ranks import on_ranks

pytestmark = pytest.mark.usefixtures("no_thread_is_left")
LOSSY: dict[str, Any] = {"codec": "topk", "top_share": 0.05, "crosses_steps": False}


def applied(model: nn.Module, reducer: CrossStepReducer, group: dist.ProcessGroup, step: int) -> Tensor:
    """The gradient of one step as an optimizer reads it. The loss is linear, so it does not depend on the parameters."""
    model.zero_grad()
    x = own_rows(batch(step), group)
    sum((p.reshape(-1) * x.mean()).sum() * (k + 1) for k, p in enumerate(model.parameters())).backward()  # type: ignore[union-attr]
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])  # type: ignore[union-attr]


def true(model: nn.Module, steps: range) -> Tensor:
    total = sum(float(batch(step).mean()) for step in steps)
    return torch.cat(
        [torch.full((p.numel(),), (k + 1) * total, dtype=torch.float64) for k, p in enumerate(model.parameters())]
    )


@pytest.mark.parametrize("then", [{}, {"codec": "fp16"}, {"factors": ("2",)}, {"partition_bytes": 100, **LOSSY}])
@pytest.mark.parametrize("how", ["switch", "checkpoint", "unfreeze"])
def test_what_was_left_out_is_applied_later(how: str, then: dict[str, Any]) -> None:
    def run(group: dist.ProcessGroup) -> float:
        model = mlp().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reducer = reducer_of(model, optimizer, group, **LOSSY)
        total = sum(applied(model, reducer, group, step) for step in range(3))
        if how == "unfreeze":
            model[0].bias.requires_grad_(False)
            reducer.rebuild()
            model[0].bias.requires_grad_(True)
            reducer.rebuild()
        owed = reducer.owed()
        if how == "checkpoint" and group.rank() != 0:
            owed = {name: values.clone() for name, values in owed.items()}
        reducer.detach()
        reducer = reducer_of(model, optimizer, group, **({"crosses_steps": False} | then))
        reducer.owe(owed)
        if "factors" not in then:
            total = total + applied(model, reducer, group, 3)
        left = reducer.owed()
        reducer.detach()
        names = [name for name, _ in model.named_parameters()]
        rest = torch.cat([left.get(name, torch.zeros(p.numel())).double() for name, p in model.named_parameters()])
        assert set(left) <= set(names)
        steps = range(3) if "factors" in then else range(4)
        return float((total + rest - true(model, steps)).norm() / true(model, steps).norm())

    for size in (1, 2):
        for found in on_ranks(size, run):
            assert not isinstance(found, Exception), found
            assert found < (2e-3 if then.get("codec") == "fp16" else 1e-10)


def test_sufficient_factors_add_what_was_owed_to_their_product() -> None:
    """The sum is applied once, not once for each rank."""

    def run(group: dist.ProcessGroup) -> float:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reducer = reducer_of(model, optimizer, group, crosses_steps=False, factors=("0",))
        reducer.owe({"0.weight": torch.full((20,), 3.0, dtype=torch.float64)})
        model(own_rows(batch(0), group)).mean().backward()
        gradient = model[0].weight.grad.clone()
        reducer.detach()
        model.zero_grad()
        model(batch(0)).mean().backward()
        return float((gradient - model[0].weight.grad - 3.0).norm())

    assert BATCH == 6
    assert all(found < 1e-12 for found in on_ranks(2, run))
