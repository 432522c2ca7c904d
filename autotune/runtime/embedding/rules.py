"""How servers update rows: the optimizers of torch, for the rows that a step touches.

Rows without gradients do not change. That is what SGD without momentum and Adagrad do by themselves; Adam is the lazy one of
`torch.optim.SparseAdam`. The state of a row stands beside its weights, so that they move together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from autotune.workloads.errors import SpecError
from autotune.workloads.models.row_wise_adagrad import RowWiseAdagrad


class Rule(Protocol):
    """An optimizer of rows."""

    @property
    def linear_rate(self) -> float | None:
        """Where rows without state change by this times their gradient: gradients may then be applied one after another."""

    def state_width(self, width: int) -> int:
        """Numbers of state per row of `width` weights."""

    def update(self, rows: Tensor, gradients: Tensor, step: int) -> None:
        """Update `rows` (weights, then state) in place; `step` counts from 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SgdRule:
    lr: float

    @property
    def linear_rate(self) -> float:
        return self.lr

    def state_width(self, width: int) -> int:  # noqa: ARG002 - it has none
        return 0

    def update(self, rows: Tensor, gradients: Tensor, step: int) -> None:  # noqa: ARG002 - as other rules
        rows.add_(gradients, alpha=-self.lr)


@dataclass(frozen=True, kw_only=True, slots=True)
class AdagradRule:
    lr: float
    eps: float
    linear_rate: None = None

    def state_width(self, width: int) -> int:
        return width

    def update(self, rows: Tensor, gradients: Tensor, step: int) -> None:  # noqa: ARG002 - as other rules
        weights, sums = rows.tensor_split(2, dim=1)
        sums.addcmul_(gradients, gradients)
        weights.addcdiv_(gradients, sums.sqrt().add_(self.eps), value=-self.lr)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowWiseAdagradRule:
    lr: float
    eps: float
    linear_rate: None = None

    def state_width(self, width: int) -> int:  # noqa: ARG002 - the same for every width
        return 1

    def update(self, rows: Tensor, gradients: Tensor, step: int) -> None:  # noqa: ARG002 - as other rules
        weights, sums = rows[:, :-1], rows[:, -1:]
        sums.add_(gradients.square().mean(1, keepdim=True))
        weights.addcdiv_(gradients, sums.sqrt().add_(self.eps), value=-self.lr)


@dataclass(frozen=True, kw_only=True, slots=True)
class LazyAdamRule:
    lr: float
    betas: tuple[float, float]
    eps: float
    linear_rate: None = None

    def state_width(self, width: int) -> int:
        return 2 * width

    def update(self, rows: Tensor, gradients: Tensor, step: int) -> None:
        weights, means, squares = rows.tensor_split(3, dim=1)
        first, second = self.betas
        means.lerp_(gradients, 1 - first)
        squares.mul_(second).addcmul_(gradients, gradients, value=1 - second)
        size = self.lr * math.sqrt(1 - second**step) / (1 - first**step)
        weights.addcdiv_(means, squares.sqrt().add_(self.eps), value=-size)


_LEFT_OUT = {
    SGD: ("momentum", "dampening", "weight_decay", "nesterov", "maximize"),
    Adagrad: ("lr_decay", "weight_decay", "initial_accumulator_value", "maximize"),
    SparseAdam: ("maximize",),
}


def rule_of(optimizer: Optimizer, tables: list[Tensor]) -> Rule:
    """The rule that does to tables what the workload's optimizer does."""
    groups = [group for group in optimizer.param_groups if any(p is table for p in group["params"] for table in tables)]
    options = [{name: value for name, value in group.items() if name != "params"} for group in groups]
    if not options or any(one != options[0] for one in options):
        raise SpecError(
            "the embedding tables have optimizer options that differ, or none: give all tables one parameter group"
        )
    given = options[0]
    _check(optimizer, given)
    lr = float(given["lr"])
    if isinstance(optimizer, SGD):
        return SgdRule(lr=lr)
    if isinstance(optimizer, SparseAdam):
        return LazyAdamRule(lr=lr, betas=given["betas"], eps=given["eps"])
    make = RowWiseAdagradRule if isinstance(optimizer, RowWiseAdagrad) else AdagradRule
    return make(lr=lr, eps=given["eps"])


def _check(optimizer: Optimizer, given: dict[str, Any]) -> None:
    if type(optimizer) not in (*_LEFT_OUT, RowWiseAdagrad):
        raise SpecError(
            f"the optimizer is {type(optimizer).__name__}, which changes rows that a step does not touch, or is unknown: tables on "
            "servers are trained by SGD, Adagrad, RowWiseAdagrad or SparseAdam"
        )
    if set_ := [name for name in _LEFT_OUT.get(type(optimizer), ()) if given.get(name)]:
        raise SpecError(
            f"the optimizer's {set_[0]} is {given[set_[0]]}, which tables on servers are trained without: set it to 0"
        )
    if isinstance(given["lr"], torch.Tensor):
        raise SpecError("the optimizer's lr is a tensor: tables on servers need a number")
