"""Sufficient factors: a Linear layer's gradient as the two matrices that it is the product of.

Over the rows of a batch (samples, or samples times tokens) the gradient of a weight of M outputs and N inputs is Δᵀ·A, with
Δ the gradient of the outputs and A the inputs. When Σ rows·(M+N) is less than what an all-reduce moves of M·N, every rank
sends its rows of Δ and A to every other, and each multiplies them all: the same gradient, for fewer bytes and more
arithmetic (Xie et al., "Lighter-Communication Distributed Machine Learning via Sufficient Factor Broadcasting", 2016; TAG
uses it too). The bias' gradient, the sum of Δ's rows, comes with it.

The layer's own backward pass does not form the product, so what is done twice elsewhere is done once here. Ranks may have
any number of rows. Left out: duplicating the ops before the layer instead of sending A.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autotune.runtime.comm.codec import GATHER, Round
from workloads.errors import SpecError


class _Linear(torch.autograd.Function):
    """A Linear layer whose backward pass hands over the factors of its weight's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.factors = factors
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, weight = ctx.saved_tensors
        ctx.factors.take(x, gradient)
        return gradient @ weight if ctx.needs_input_grad[0] else None, None, None, None


class Factors:
    """The codec of one Linear layer, and the hand in it that takes the factors."""

    name = "factors"
    is_lossless = True

    def __init__(
        self,
        module: nn.Linear,
        *,
        weight: Callable[[], float] = lambda: 1.0,
        on_rebuild: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`weight`: what this rank's gradient counts. `on_rebuild` is told the floating-point operations of each product
        beyond those of the rank's own rows, which its backward pass would have done.
        """
        self._module, self._weight, self._on_rebuild = module, weight, on_rebuild
        self._rows: list[Tensor] = []
        self._num_own = 0
        module.forward = functools.partial(_forward, module, self)  # type: ignore[method-assign]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """In the order in which their gradients stand side by side."""
        return list(self._module.parameters(recurse=False))  # a Linear layer's: weight, then bias

    def detach(self) -> None:
        """The layer is as before."""
        del self._module.forward

    def take(self, x: Tensor, gradient: Tensor) -> None:
        """The rows of one backward pass."""
        inputs, outputs = self._module.in_features, self._module.out_features
        self._rows.append(torch.cat([gradient.detach().reshape(-1, outputs), x.detach().reshape(-1, inputs)], dim=1))

    def encode(self, flat: Tensor) -> Round:
        outputs = self._module.out_features
        empty = flat.new_empty(0, outputs + self._module.in_features)
        rows = torch.cat([empty, *self._rows])
        if (weight := self._weight()) != 1.0:
            rows[:, :outputs] *= weight
        self._rows.clear()
        self._num_own = len(rows)
        return Round(kind=GATHER, tensors=(rows.reshape(-1),))

    def decode(self, received: Sequence[Tensor], flat: Tensor) -> None:
        """Add the product to what is there."""
        outputs, inputs = self._module.out_features, self._module.in_features
        rows = torch.cat(list(received)).view(-1, outputs + inputs)
        delta, x = rows[:, :outputs], rows[:, outputs:]
        flat[: outputs * inputs].view(outputs, inputs).addmm_(delta.t(), x)
        if self._module.bias is not None:
            flat[outputs * inputs :].add_(delta.sum(0))
        self._on_rebuild(2.0 * (len(rows) - self._num_own) * outputs * inputs)

    def buffer_bytes(self, flat: Tensor) -> int:  # noqa: ARG002 - depends on the batch, not on the gradient
        return 0


def _forward(module: nn.Linear, factors: Factors, x: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return nn.functional.linear(x, module.weight, module.bias)
    done: Tensor = _Linear.apply(x, module.weight, module.bias, factors)  # type: ignore[no-untyped-call]
    return done


def factored_layers(model: nn.Module, names: Sequence[str], make: Callable[[nn.Linear], Factors]) -> dict[int, Factors]:
    """The factors of the named layers, by the ids of their parameters."""
    modules, owners = (
        dict(model.named_modules()),
        Counter(id(p) for m in model.modules() for p in m._parameters.values()),
    )
    found: dict[int, Factors] = {}
    for name in names:
        module = modules.get(name)
        own = [p for p in module._parameters.values() if p is not None] if module is not None else []
        if type(module) is not nn.Linear or any(owners[id(p)] > 1 or not p.requires_grad for p in own):
            raise SpecError(
                f"the plan's factors name {name!r}: it must be a Linear layer of the model, trained, whose weights no "
                "other layer shares; take it out of the list"
            )
        found |= dict.fromkeys(map(id, own), make(module))
    return found
