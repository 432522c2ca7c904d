"""Your own training job, ready to be tuned.

From this folder:

    mpirun -n 4 autotune sweep --workload own_workload:factory --set width=128

Any object with these names will do: nothing is inherited and nothing is imported from the tuner.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import TensorDataset


class SineRegression:
    """Learn y = sin(x1) * cos(x2) from noisy samples."""

    name = "sine"  # what reports call it
    min_samples = 1  # fewest samples one rank may be given; 2 if your model has BatchNorm

    def __init__(self, width: int, global_batch: int, lr: float) -> None:
        self.width = width
        self.global_batch = global_batch  # samples per step over all ranks together; tuning never changes it
        self.lr = lr

    def model(self) -> nn.Module:
        # Any torch model. The seed is set before this is called, so that every rank builds the same one.
        return nn.Sequential(
            nn.Linear(2, self.width), nn.Tanh(), nn.Linear(self.width, self.width), nn.Tanh(), nn.Linear(self.width, 1)
        )

    def dataset(self) -> TensorDataset:
        # The whole data set on every rank; which samples a rank takes is decided by the plan.
        generator = torch.Generator().manual_seed(0)
        inputs = torch.rand(2048, 2, generator=generator) * 6 - 3
        noise = 0.05 * torch.randn(2048, generator=generator)
        return TensorDataset(inputs, torch.sin(inputs[:, 0]) * torch.cos(inputs[:, 1]) + noise)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        # Must be the mean over the samples: a rank with more samples then counts for exactly that much more.
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs).squeeze(1), targets)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=self.lr, momentum=0.9)


def factory(width: int = 64, global_batch: int = 64, lr: float = 0.05) -> SineRegression:
    """Called once per rank; `--set name=value` sets these arguments, as the type of their default."""
    return SineRegression(width, global_batch, lr)
