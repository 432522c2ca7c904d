"""Adagrad with one accumulator per row of a table: the mean of the squares of the row's gradient (as in FBGEMM).

A parameter with one dimension has a single accumulator. A row whose gradient is 0 does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class RowWiseAdagrad(Optimizer):
    """The optimizer that tables of recommendation models are usually trained with: its state is one number per row."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 0.01, eps: float = 1e-10) -> None:
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group["lr"], group["eps"])
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, lr: float, eps: float) -> None:
        state = self.state[parameter]
        means = gradient.square().reshape(len(gradient) if gradient.dim() > 1 else 1, -1).mean(1)
        if "sum" not in state:
            state["sum"] = torch.zeros_like(means)
        state["sum"] += means
        scale = (lr / (state["sum"].sqrt() + eps)).view(-1, *[1] * max(gradient.dim() - 1, 0))
        parameter.sub_(scale * gradient)
