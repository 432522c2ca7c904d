"""Small training jobs for the reducers: models, optimizers, batches, and plain training to compare with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.runtime.reduce.cross_step import CrossStepReducer
from autotune.runtime.reduce.scheduled import ReducerSettings
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan
from tests.gloo_ranks import on_ranks, rank_network

FIXED_ORDER = {"priority": "fifo", "credit_bytes": 10**9}
"""With this, ranks exchange no schedule."""
SAMPLES = {1: (6,), 2: (4, 2), 3: (3, 1, 2)}
BATCH = 6


class Tied(nn.Module):
    """Tied weights, attention whose out_proj is never called, a frozen and an unused parameter, parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 8, bias=False)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.scale = nn.Parameter(torch.ones(8))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)[:, None, :].expand(-1, 3, -1)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        h = self.norm(self.frozen(h).mean(1) * self.scale)
        return nn.functional.linear(h, self.embed.weight.t())  # tied


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "tied": Tied}
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
}


DRAWING = threading.Lock()


def model_of(name: str) -> nn.Module:
    """Ranks are threads here, and share torch's generator."""
    with DRAWING:
        torch.manual_seed(0)
        return MODELS[name]().double()


def batch(step: int) -> Tensor:
    return torch.randn(BATCH, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.flip(1)).square().mean()


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups with options of their own."""
    return [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "lr": 0.02, "weight_decay": 0.0},
    ]


def train_plainly(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch(step)).backward()
        optimizer.step()
        scheduler.step()


def own_rows(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    samples = SAMPLES[group.size()]
    start = sum(samples[: group.rank()])
    return x[start : start + samples[group.rank()]]


def plan_of(num_ranks: int, **comm: Any) -> Plan:
    comm = {"partition_bytes": 300, "credit_bytes": 700, "crosses_steps": True} | comm
    compression = {name: comm.pop(name) for name in ("codec", "factors", "top_share") if name in comm}
    return Plan(
        batch=BatchPlan(samples=SAMPLES[num_ranks]),
        comm=CommPlan(reducer="scheduled", **comm),
        compression=CompressionPlan(**compression),
    )


def reducer_of(model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup, **comm: Any) -> CrossStepReducer:
    settings = ReducerSettings(
        weight=SAMPLES[group.size()][group.rank()] / BATCH, timeout_s=15.0, network=rank_network()
    )
    return CrossStepReducer(model, optimizer, plan_of(group.size(), **comm), group, settings)


def distance(a: nn.Module, b: nn.Module) -> float:
    """Relative, of all parameters together."""
    ours, theirs = (torch.cat([p.detach().reshape(-1) for p in model.parameters()]) for model in (a, b))
    return float((ours - theirs).norm() / theirs.norm())


def compare(
    size: int,
    train: Callable[[nn.Module, Optimizer, Callable[[Tensor], Tensor], CrossStepReducer | None], None],
    *,
    name: str = "mlp",
    optimizer_name: str = "adamw",
    **comm: Any,
) -> list[CrossStepReducer]:
    """Check that `train` results in the same parameters with a reducer on each rank as without; return the reducers."""
    plain = model_of(name)
    train(plain, OPTIMIZERS[optimizer_name](plain.parameters()), lambda x: x, None)

    def run(group: dist.ProcessGroup) -> CrossStepReducer:
        model = model_of(name)
        optimizer = OPTIMIZERS[optimizer_name](model.parameters())
        reducer = reducer_of(model, optimizer, group, **comm)
        try:
            train(model, optimizer, lambda x: own_rows(x, group), reducer)
        except Exception as error:
            reducer.detach(error)
            raise
        reducer.detach()
        assert distance(model, plain) <= 1e-10
        return reducer

    reducers = on_ranks(size, run)
    for reducer in reducers:
        if isinstance(reducer, Exception):
            raise reducer
    return reducers
