"""A model of which one stage fails on purpose in its third pass: `--workload faulty_stage:factory`."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset


class Fails(nn.Module):
    """Passes its input through in evaluation, and in its first `calls` calls with gradients."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self._left = calls

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        if stream.requires_grad and not stream.grad_fn:  # the first of a stage: its input is detached
            self._left -= 1
            if self._left < 0:
                raise ValueError("on purpose, in a stage")
        return stream


class Faulty:
    """A tiny regression."""

    name = "faulty"
    global_batch = 8
    min_samples = 1

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), Fails(3), nn.Linear(32, 1))

    def dataset(self) -> TensorDataset:
        generator = torch.Generator().manual_seed(0)
        return TensorDataset(torch.randn(64, 8, generator=generator), torch.randn(64, 1, generator=generator))

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)


def factory() -> Faulty:
    return Faulty()
