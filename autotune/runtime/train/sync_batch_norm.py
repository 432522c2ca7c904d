"""BatchNorm over the samples of all ranks: training with any split is then training on the whole batch.

BatchNorm (Ioffe and Szegedy, 2015) normalises by the mean and variance of the samples of its own rank. Here an all-reduce
per layer, in float64, sums the count of values, their sums and their squares about the local means. Every rank then
normalises by the mean and variance of the whole batch, independent of the split. The gradient through the statistics takes
one more all-reduce. Torch's SyncBatchNorm does the same on CUDA devices only, and raises where a rank has no samples; here
such a rank takes part with a sample of weight 0.

Layers stay the objects of the model, with their state; only their `forward` is replaced until `detach`. All ranks must run
the same layers in the same order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from autotune.runtime.device import handle_of
from autotune.runtime.override import Override
from autotune.runtime.transport.traced_group import taken
from autotune.runtime.waits import Waits


@dataclass(frozen=True, kw_only=True, slots=True)
class _Statistics:
    """Of one layer's inputs, over all ranks and all but the channel dimension."""

    mean: Tensor
    variance: Tensor
    """About the mean, divided by `count`."""
    count: Tensor
    """On the device: the host does not wait for it."""


class SyncNorms:
    """The BatchNorm layers of a model, synchronised over a process group that no other thread uses.

    Forward passes call it from the thread that trains, backward passes from autograd's; never both at once.
    """

    def __init__(
        self, model: nn.Module, group: dist.ProcessGroup, on_wait: Callable[[float], None] | None = None
    ) -> None:
        """`on_wait`: called with the duration of each all-reduce, which it makes the host wait for."""
        self._group, self._on_wait = group, on_wait
        self._layers = batch_norms(model)
        self.counts = True
        """Whether this rank's samples are part of the batch; false where they have weight 0."""
        self.gradient_weight = 1.0
        """The factor of this rank's gradients after backward; 1 where its loss is already weighted."""
        self.waits = Waits()
        """The all-reduces of statistics since the last call of `take_waited_s`."""
        for layer in self._layers:
            layer.__dict__["forward"] = Override(layer, "forward", functools.partial(_forward, layer, self))

    def __len__(self) -> int:
        """The number of layers."""
        return len(self._layers)

    def take_waited_s(self) -> float:
        """The duration of all-reduces since the last call."""
        taken(self._group)  # discard the records of a paced group
        return sum(ended_s - begun_s for begun_s, ended_s in self.waits.take())

    def detach(self) -> None:
        """Restore the layers."""
        for layer in self._layers:
            del layer.__dict__["forward"]
        self._layers = []
        del self._group

    def statistics(self, x: Tensor) -> _Statistics:
        """n, Σx and Σ(x-m)² + n·m² about the rank's own mean m: sums that lose nothing where the mean is large."""
        count = float(x.numel() // x.shape[1]) if self.counts else 0.0
        sums = x.new_zeros(2 * x.shape[1] + 1, dtype=torch.float64)
        if count:
            own = x if x.dtype in (torch.float32, torch.float64) else x.float()
            variance, mean = torch.var_mean(own, _all_but_channels(x), correction=0)
            mean, variance = mean.double(), variance.double()
            sums = torch.cat([count * mean, count * (variance + mean * mean), sums.new_tensor([count])])
        self.add_up(sums)
        total = sums[-1]
        if count <= 1 and total <= 1:  # read from the device only where this rank's own samples are not enough
            raise ValueError(
                f"BatchNorm in training needs more than one value per channel but all ranks have {float(total):.0f}"
            )
        mean, square = (sums[:-1] / total.clamp(min=1.0)).chunk(2)
        return _Statistics(mean=mean, variance=(square - mean * mean).clamp_(min=0.0), count=total)

    def add_up(self, sums: Tensor) -> None:
        """All-reduce in place, and wait."""
        device = handle_of(sums)
        begun = device.stamp()
        self._group.allreduce([sums], dist.AllreduceOptions()).wait()
        ended = device.stamp()
        self.waits.add(begun, ended)
        if self._on_wait is not None:
            self._on_wait(ended.seconds - begun.seconds)


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """The layers whose results depend on which samples are on the same rank."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


class _Normalise(torch.autograd.Function):
    """(x - mean) / √(variance + ε) · weight + bias, where mean and variance are functions of every rank's x."""

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - torch's signature
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        found: _Statistics,
        norms: SyncNorms,
    ) -> Tensor:
        inverse = (found.variance + eps).rsqrt()
        normal = ((x - _spread(found.mean, x)) * _spread(inverse, x)).to(x.dtype)
        ctx.save_for_backward(normal, inverse, weight)
        ctx.count, ctx.norms = found.count, norms
        outputs = normal if weight is None else normal * _spread(weight, x)
        return outputs.clone() if bias is None else outputs + _spread(bias, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """dx = w/σ · (dy - Σdy/n - x̂·Σ(dy·x̂)/n), with weighted sums over all ranks."""
        (dy,) = gradients
        normal, inverse, weight = ctx.saved_tensors
        norms: SyncNorms = ctx.norms
        dims = _all_but_channels(dy)
        own = torch.stack([dy.sum(dims, dtype=torch.float64), (dy * normal).sum(dims, dtype=torch.float64)])
        dx = None
        if ctx.needs_input_grad[0]:
            sums = own * norms.gradient_weight if norms.counts else torch.zeros_like(own)
            norms.add_up(sums)
            scale = inverse if weight is None else inverse * weight
            if norms.counts:  # a sample of weight 0 has no part in the statistics
                sums /= ctx.count * norms.gradient_weight
                dy = dy - _spread(sums[0], dy) - normal * _spread(sums[1], dy)
            dx = dy * _spread(scale, dy)
        shift, stretch = own.to(dy.dtype)
        return (
            dx,
            stretch if ctx.needs_input_grad[1] else None,
            shift if ctx.needs_input_grad[2] else None,
            None,
            None,
            None,
        )


def _forward(layer: _BatchNorm, norms: SyncNorms, x: Tensor) -> Tensor:
    if not layer.training:
        return type(layer).forward(layer, x)
    layer._check_input_dim(x)
    found = norms.statistics(x.detach())
    _update_running(layer, found)
    done: Tensor = _Normalise.apply(x, layer.weight, layer.bias, layer.eps, found, norms)  # type: ignore[no-untyped-call]
    return done


@torch.no_grad()
def _update_running(layer: _BatchNorm, found: _Statistics) -> None:
    """As torch: the variance that eval uses is divided by n - 1. The result is the same on every rank."""
    if not layer.track_running_stats or layer.running_mean is None or layer.running_var is None:
        return
    assert layer.num_batches_tracked is not None
    layer.num_batches_tracked.add_(1)
    momentum = layer.momentum if layer.momentum is not None else 1.0 / float(layer.num_batches_tracked)
    layer.running_mean.lerp_(found.mean.to(layer.running_mean), momentum)
    unbiased = found.variance * (found.count / (found.count - 1))
    layer.running_var.lerp_(unbiased.to(layer.running_var), momentum)


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _spread(values: Tensor, x: Tensor) -> Tensor:
    """One value per channel, with the dtype of `x` and broadcastable to its shape."""
    return values.to(x.dtype).view(_channel_shape(x))


def _channel_shape(x: Tensor) -> Sequence[int]:
    return [1, -1, *([1] * (x.dim() - 2))]
