"""A workload that fails on purpose: `--workload faulty:factory --set place=step --set rank=2`."""

from __future__ import annotations

import os
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))


class Faulty:
    """A tiny regression. From its second trial on, every other trial fails at `place`, on one rank after another."""

    name = "faulty"
    global_batch = 16
    min_samples = 1

    def __init__(self, place: str, rank: int) -> None:
        self._place = place
        self._rank = rank
        self._trial = -1
        self._calls = 0
        if place == "start":
            self._fail()

    def model(self) -> nn.Module:
        self._trial += 1
        self._calls = 0
        if self._place == "model":
            self._fail_on_one_rank()
        return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), _MayFail(self), nn.Linear(32, 1))

    def dataset(self) -> TensorDataset:
        generator = torch.Generator().manual_seed(0)
        return TensorDataset(torch.randn(64, 8, generator=generator), torch.randn(64, 1, generator=generator))

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        self._calls += 1
        if self._place == "step" and self._calls == 3:
            self._fail_on_one_rank()
        if self._place == "hang" and self._trial == 2 and self._rank == RANK:
            time.sleep(3600)
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def backward(self) -> None:
        if self._place == "backward" and self._calls == 3:
            self._fail_on_one_rank()

    def _fail_on_one_rank(self) -> None:
        """Trial 0 captures costs and trial 1 is the default: they must work; from 8 on there may be the comparison."""
        turn = self._trial % 8
        if self._trial in range(2, 8) and turn % 2 == 0 and turn // 2 == RANK:
            raise ValueError(f"on purpose, {self._place}")

    def _fail(self) -> None:
        if self._rank == RANK:
            raise ValueError(f"on purpose, {self._place}")


class _MayFail(nn.Module):
    def __init__(self, owner: Faulty) -> None:
        super().__init__()
        self._owner = [owner]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            x.register_hook(lambda _: self._owner[0].backward())
        return x


def factory(place: str = "step", rank: int = 2) -> Faulty:
    return Faulty(place, rank)
