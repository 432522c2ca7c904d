"""Sufficient factors: a Linear layer's gradient as the two matrices that it is the product of.

Over the rows of a batch (samples, or samples times tokens) the gradient of a weight of M outputs and N inputs is Δᵀ·A,
with Δ the gradient of the outputs and A the inputs. If Σ rows·(M+N) is less than what an all-reduce moves of M·N, every
rank sends its rows of Δ and A to all other ranks, and each rank multiplies the rows of all: the same gradient, with
fewer bytes and more arithmetic (Xie et al., "Lighter-Communication Distributed Machine Learning via Sufficient Factor
Broadcasting", 2016; TAG uses it too). The gradient of the bias, the sum of Δ's rows, follows from the same rows.

The layer's own backward pass does not form the product, so it is computed once only. Ranks may have any number of rows.
After a pass that is not exchanged yet (accumulation) `weight.grad` is the product of this rank's rows, as a script
expects; if the script has zeroed it, those rows are not sent. Under autocast the rows have autocast's type. Left out:
duplicating the ops before the layer instead of sending A.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from autotune.runtime.codecs.protocol import GATHER, Round
from autotune.runtime.override import Override
from autotune.runtime.tracked import raw
from autotune.workloads.errors import SpecError


class Buffer(Protocol):
    """What the factors of a layer need of the fusion buffer that holds its gradient."""

    flat: Tensor
    scale: float | None

    @property
    def parameters(self) -> Sequence[nn.Parameter]: ...

    def point(self) -> None:
        """Let every `parameter.grad` be its view of `flat`."""


class _Linear(torch.autograd.Function):
    """A Linear layer whose backward pass keeps the sufficient factors of its weight's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors) -> Tensor:
        ctx.factors, ctx.dtype = factors, x.dtype
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype) if bias is not None else None
        ctx.save_for_backward(x, weight)
        with torch.autocast(x.device.type, enabled=False):
            return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, weight = ctx.saved_tensors
        ctx.factors.take(x, gradient)
        return (gradient @ weight).to(ctx.dtype) if ctx.needs_input_grad[0] else None, None, None, None


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one backward pass: Δ and A side by side, and the weight of the pass."""

    values: Tensor
    weight: float


class Factors:
    """The codec of one Linear layer. It replaces the layer's forward function by one that keeps the sufficient factors.

    Threads: `encode` and all methods of a backward pass run in the script's or autograd's thread, `decode` in the
    thread that completes the exchange, when no rows are being added.
    """

    name = "factors"
    is_lossless = True

    def __init__(
        self,
        module: nn.Linear,
        *,
        weight: Callable[[], float] = lambda: 1.0,
        on_rebuild: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`weight`: returns the weight of the running backward pass. `on_rebuild`: called with the floating-point
        operations of each product beyond those of the rank's own rows, which an ordinary backward pass computes too.
        """
        self._module, self._weight, self._on_rebuild = module, weight, on_rebuild
        self._outputs, self._inputs, self._has_bias = module.out_features, module.in_features, module.bias is not None
        self._rows: list[_Rows] = []
        self._num_shown = 0
        """Entries of `_rows`, from the first, whose product is in the gradient."""
        self._before: Tensor | None = None
        """The buffer's gradients without that product."""
        self._num_own = 0
        module.__dict__["forward"] = Override(module, "forward", functools.partial(_forward, module, self))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """In the order of their gradients in the buffer."""
        return list(self._module.parameters(recurse=False))  # a Linear layer's: weight, then bias

    @property
    def has_rows(self) -> bool:
        return bool(self._rows)

    def detach(self) -> None:
        """Restore the layer's own forward function."""
        del self._module.__dict__["forward"]

    def take(self, x: Tensor, gradient: Tensor) -> None:
        """Keep the rows of one backward pass."""
        if weight := self._weight():
            delta = gradient.detach().reshape(-1, self._outputs)
            self._rows.append(_Rows(torch.cat([delta, x.detach().reshape(-1, self._inputs)], dim=1), weight))

    def clear(self) -> None:
        """Discard the accumulated rows."""
        self._rows.clear()
        self._num_shown, self._before = 0, None

    def show(self, buffer: Buffer) -> None:
        """After a pass that is not exchanged yet: write this rank's gradient to the buffer, for the script to read."""
        new = self._rows[self._num_shown :]
        if not new:
            return
        held = buffer.parameters[0].grad is not None
        if self._before is None:
            self._before = buffer.flat.clone() if held else torch.zeros_like(buffer.flat)
        if not held:
            buffer.flat.zero_()
        if buffer.scale is None:
            buffer.scale = new[0].weight
        for rows in new:
            self._add_product(rows.values.to(buffer.flat.dtype), buffer.flat, rows.weight / buffer.scale)
        buffer.point()
        self._num_shown = len(self._rows)

    def close(self, buffer: Buffer) -> bool:
        """Whether there are rows to send; leaves in the buffer what their product is added to."""
        if self._num_shown:
            gradient = buffer.parameters[0].grad
            if gradient is None or not gradient.any():
                del self._rows[: self._num_shown]
            elif self._before is not None:
                buffer.flat.copy_(self._before)
            self._num_shown, self._before = 0, None
        return bool(self._rows)

    def encode(self, flat: Tensor) -> Round:
        chunks = [flat.new_empty(0, self._outputs + self._inputs)]
        for rows in self._rows:
            values = rows.values.to(flat.dtype)
            if rows.weight != 1.0:
                values[:, : self._outputs] *= rows.weight
            chunks.append(values)
        self._rows.clear()
        wire = torch.cat(chunks)
        self._num_own = len(wire)
        return Round(kind=GATHER, tensors=(wire.reshape(-1),))

    def decode(self, received: Sequence[Tensor], flat: Tensor) -> None:
        """Add the product of all ranks' rows to `flat`."""
        rows = torch.cat(list(received)).view(-1, self._outputs + self._inputs)
        self._add_product(rows, flat, 1.0)
        self._on_rebuild(2.0 * (len(rows) - self._num_own) * self._outputs * self._inputs)

    def buffer_bytes(self, flat: Tensor) -> int:  # noqa: ARG002 - depends on the batch, not on the gradient
        return 0

    def _add_product(self, rows: Tensor, flat: Tensor, scale: float) -> None:
        delta, x = rows[:, : self._outputs], rows[:, self._outputs :]
        size = self._outputs * self._inputs
        flat[:size].view(self._outputs, self._inputs).addmm_(delta.t(), x, alpha=scale)
        if self._has_bias:
            flat[size:].add_(delta.sum(0), alpha=scale)


def _forward(module: nn.Linear, factors: Factors, x: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return nn.functional.linear(x, module.weight, module.bias)
    _check_hooks(module)
    done: Tensor = _Linear.apply(x, module.weight, module.bias, factors)  # type: ignore[no-untyped-call]
    return done


def _check_hooks(module: nn.Linear) -> None:
    """Refuse hooks on gradients: they would be called with None, as the layer's backward pass forms no gradient."""
    with raw():
        hooks = [hook for p in module.parameters(recurse=False) for hook in (p._backward_hooks or {}).values()]
    if any(not str(getattr(hook, "__module__", "")).startswith("autotune.") for hook in hooks):
        raise SpecError(
            f"{module} has a hook on a parameter's gradient, which sufficient factors do not form: take the layer "
            "out of the plan's factors"
        )


def factored_layers(
    model: nn.Module, names: Sequence[str], make: Callable[[nn.Linear], Factors], *, skip_frozen: bool = False
) -> dict[int, Factors]:
    """The factors of the named layers, by the ids of their parameters. `skip_frozen`: leave out frozen layers."""
    modules, owners = (
        dict(model.named_modules()),
        Counter(id(p) for m in model.modules() for p in m._parameters.values()),
    )
    found: dict[int, Factors] = {}
    for name in names:
        module = modules.get(name)
        own = [p for p in module._parameters.values() if p is not None] if module is not None else []
        if skip_frozen and not all(p.requires_grad for p in own):
            continue
        is_fit = type(module) is nn.Linear and all(owners[id(p)] == 1 and p.is_floating_point() for p in own)
        if not is_fit or not all(p.requires_grad for p in own):
            raise SpecError(
                f"the plan's factors name {name!r}: it must be a Linear layer of the model, trained, whose weights no "
                "other layer shares; take it out of the list"
            )
        found |= dict.fromkeys(map(id, own), make(cast("nn.Linear", module)))
    return found
