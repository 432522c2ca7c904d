"""Embedding bags in one process, and the same on the ranks of a job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from autotune.runtime.embedding.model_tables import ModelTables
from autotune.runtime.embedding.rules import rule_of
from autotune.workloads.models.dlrm import NO_ID, bags, zipf_ids
from autotune.workloads.models.row_wise_adagrad import RowWiseAdagrad
from autotune.workloads.plan.embedding import EmbeddingPlan, TablePlacement
from tests.gloo_ranks import on_ranks

ROWS, WIDTHS, SLOTS = (40, 7, 100, 3), (4, 4, 6, 4), (5, 1, 8, 3)
NAMES = tuple(f"tables.{number}" for number in range(len(ROWS)))
BATCH = 24
_SEEDED = threading.Lock()
"""Ranks are threads, which share torch's generator."""
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "row-wise": RowWiseAdagrad,
    "adam": SparseAdam,
}


class Model(nn.Module):
    """Four tables of two widths, one of which takes means, and a layer above them."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, width, mode="mean" if number == 2 else "sum", sparse=sparse, dtype=torch.float64)
            for number, (rows, width) in enumerate(zip(ROWS, WIDTHS, strict=True))
        )
        self.above = torch.linspace(-1, 1, sum(WIDTHS), dtype=torch.float64)

    def forward(self, ids: Tensor) -> Tensor:
        pooled = [table(*bag) for table, bag in zip(self.tables, bags(ids, SLOTS), strict=True)]
        return torch.cat(pooled, 1).tanh() @ self.above


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) - batch[:, 0].double() / 10).square().mean()


def batch_of(step: int) -> Tensor:
    """Ids with duplicates, bags with none; in every fifth step, none in the second table."""
    generator = torch.Generator().manual_seed(step)
    columns = []
    for rows, slots in zip(ROWS, SLOTS, strict=True):
        own = zipf_ids(rows, (BATCH, slots), torch.Generator().manual_seed(1000 * step + rows))
        held = torch.randint(slots + 1, (BATCH, 1), generator=generator)
        own[torch.arange(slots) >= held] = NO_ID
        columns.append(own)
    if step % 5 == 4:
        columns[1][:] = NO_ID
    return torch.cat(columns, 1)


def lookups_of(batch: Tensor) -> dict[str, Any]:
    return dict(zip(NAMES, bags(batch, SLOTS), strict=True))


def seeded(kind: str) -> tuple[Model, Optimizer]:
    with _SEEDED:
        torch.manual_seed(3)
        model = Model(sparse=kind == "adam")
    return model, OPTIMIZERS[kind](model.parameters(), lr=0.1)


@dataclass(frozen=True, kw_only=True)
class Trained:
    losses: list[float]
    tables: list[Tensor]
    sent_bytes: int = 0


def train_locally(kind: str, num_steps: int) -> Trained:
    model, optimizer = seeded(kind)
    losses = []
    for step in range(num_steps):
        optimizer.zero_grad()
        loss = loss_of(model, batch_of(step))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return Trained(losses=losses, tables=[table.weight.detach() for table in model.tables])


def shares(num_workers: int, num_servers: int) -> tuple[int, ...]:
    """Uneven samples of the workers, none of the servers, which come first."""
    weights = range(1, num_workers + 1)
    own = [BATCH * weight // sum(weights) for weight in weights]
    own[-1] += BATCH - sum(own)
    return (*[0] * num_servers, *own)


def train_on_ranks(kind: str, num_steps: int, plan: EmbeddingPlan, samples: tuple[int, ...]) -> list[Trained]:
    """What each rank computes."""

    def run(group: Any) -> Trained:
        model, optimizer = seeded(kind)
        bag_weights = [table.weight for table in model.tables]
        tables = ModelTables(model, rule_of(optimizer, bag_weights))
        tables.open(plan, samples, group)
        begin = sum(samples[: group.rank()])
        end = begin + samples[group.rank()]

        def passes(step: int) -> list[Tensor]:
            """Two passes where a rank has samples enough."""
            part = batch_of(step)[begin:end]
            return [one for one in part.split(max(-(-len(part) // 2), 1)) if len(one)]

        def looked_up(step: int) -> list[dict[str, Any]]:
            return [lookups_of(one) for one in passes(step)]

        losses = []
        tables.begin([looked_up(step) for step in range(tables.ahead)])
        for step in range(num_steps):
            total = 0.0
            for number, one in enumerate(passes(step)):
                tables.enter(number, torch.device("cpu"))
                loss = loss_of(model, one) * (len(one) / BATCH)
                loss.backward()
                total += float(loss.detach())
            losses.append(total)
            tables.push(looked_up(step + tables.ahead))
        whole, sent_bytes = Model(sparse=False), tables.sent_bytes
        tables.copy_to(whole)
        tables.close()
        return Trained(losses=losses, tables=[table.weight.detach() for table in whole.tables], sent_bytes=sent_bytes)

    return on_ranks(len(samples), run)


def largest_difference(kind: str, num_steps: int, plan: EmbeddingPlan, samples: tuple[int, ...]) -> float:
    """Of losses and weights, between training on ranks and in one process."""
    expected, found = train_locally(kind, num_steps), train_on_ranks(kind, num_steps, plan, samples)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    losses = torch.tensor([one.losses for one in found], dtype=torch.float64).sum(0)
    worst = float((losses - torch.tensor(expected.losses, dtype=torch.float64)).abs().max())
    for one in found:
        worst = max([worst, *(float((a - b).abs().max()) for a, b in zip(one.tables, expected.tables, strict=True))])
    return worst


def plan_of(servers: tuple[int, ...], *, by_table: bool) -> EmbeddingPlan:
    """By rows, or two of the tables each on one server."""
    placed = [TablePlacement(name=name, server=servers[number % len(servers)]) for number, name in enumerate(NAMES[:2])]
    return EmbeddingPlan(servers=servers, tables=tuple(placed) if by_table else ())
