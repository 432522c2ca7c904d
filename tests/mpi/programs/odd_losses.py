"""A workload with a loss that is wrong: `--workload odd_losses:factory --set kind=sum`.

With kind "mean", the loss of rank 1 is nan from call NAN_FROM of each trial on.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
NAN_FROM = int(os.environ.get("NAN_FROM", "0"))


class Odd:
    """A tiny regression."""

    name = "odd"
    global_batch = 16
    min_samples = 1

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._calls, self._models = 0, 0

    def model(self) -> nn.Module:
        self._calls, self._models = 0, self._models + 1
        return nn.Linear(8, 1)

    def dataset(self) -> TensorDataset:
        generator = torch.Generator().manual_seed(0)
        return TensorDataset(torch.randn(64, 8, generator=generator), torch.randn(64, 1, generator=generator))

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> Any:
        self._calls += 1
        loss = nn.functional.mse_loss(model(batch[0]), batch[1], reduction="sum" if self._kind == "sum" else "mean")
        if self._kind == "dict":
            return {"loss": loss}
        is_nan = NAN_FROM and self._models > 1 and self._calls >= NAN_FROM and RANK == 1
        return loss * float("nan") if is_nan else loss

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)


def factory(kind: str = "mean") -> Odd:
    return Odd(kind)
