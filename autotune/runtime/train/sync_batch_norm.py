"""BatchNorm over the samples of all ranks: training with any split is then training on the whole batch.

BatchNorm (Ioffe and Szegedy, 2015) normalises by the mean and variance of the samples at hand, and a rank has only its own.
Here the ranks add up how many values they have, their sums and their squares about their own means, in float64 and in one
all-reduce per layer, and every rank normalises by the same two figures: those of the whole batch, whoever holds how much of
it. Gradients through the statistics take one more. Torch's own SyncBatchNorm does the same on CUDA devices only, and raises
where a rank has nothing; here such a rank takes part with a sample that does not count.

Layers stay the model's own objects, with the state they had; only their `forward` is replaced until `detach`. All ranks must
run the same layers in the same order.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from autotune.runtime.override import Override
from autotune.runtime.transport.traced_group import taken


@dataclass(frozen=True, kw_only=True, slots=True)
class _Statistics:
    """Of one layer's inputs, over all ranks and all but the channel dimension."""

    mean: Tensor
    variance: Tensor
    """About the mean, divided by `count`."""
    count: float


class SyncNorms:
    """The BatchNorm layers of a model, synchronised over a process group that no other thread uses."""

    def __init__(
        self, model: nn.Module, group: dist.ProcessGroup, on_wait: Callable[[float], None] = lambda _: None
    ) -> None:
        """`on_wait` is told how long each exchange took."""
        self._group, self._on_wait = group, on_wait
        self._layers = batch_norms(model)
        self.counts = True
        """Whether this rank's samples are part of the batch; false where it only goes through the motions."""
        self.gradient_weight = 1.0
        """What this rank's gradients will be multiplied by after backward; 1 where its loss is weighted already."""
        self.waited_s = 0.0
        for layer in self._layers:
            layer.__dict__["forward"] = Override(layer, "forward", functools.partial(_forward, layer, self))

    def __len__(self) -> int:
        """How many layers."""
        return len(self._layers)

    def take_waited_s(self) -> float:
        """How long exchanges took since the last call."""
        waited_s, self.waited_s = self.waited_s, 0.0
        taken(self._group)  # what a paced group has noted is nobody's business here
        return waited_s

    def detach(self) -> None:
        """The layers are as before."""
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
        total = float(sums[-1])
        mean, square = (sums[:-1] / max(total, 1.0)).chunk(2)
        return _Statistics(mean=mean, variance=(square - mean * mean).clamp_(min=0.0), count=total)

    def add_up(self, sums: Tensor) -> None:
        """In place, over all ranks."""
        begun_s = time.perf_counter()
        self._group.allreduce([sums], dist.AllreduceOptions()).wait()
        seconds = time.perf_counter() - begun_s
        self.waited_s += seconds
        self._on_wait(seconds)


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """The layers whose results depend on which samples share a rank."""
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
        """dx = w/σ · (dy - Σdy/n - x̂·Σ(dy·x̂)/n), with sums over all ranks of what each gradient counts."""
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
            if norms.counts:  # a sample that does not count has no part in the statistics
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
    if found.count <= 1:
        raise ValueError(
            f"BatchNorm in training needs more than one value per channel but all ranks have {found.count:.0f}"
        )
    _update_running(layer, found)
    done: Tensor = _Normalise.apply(x, layer.weight, layer.bias, layer.eps, found, norms)  # type: ignore[no-untyped-call]
    return done


@torch.no_grad()
def _update_running(layer: _BatchNorm, found: _Statistics) -> None:
    """As torch does it: the variance that eval uses is divided by n - 1. The same on every rank."""
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
    """One value for each channel, in the type and beside the dimensions of `x`."""
    return values.to(x.dtype).view(_channel_shape(x))


def _channel_shape(x: Tensor) -> Sequence[int]:
    return [1, -1, *([1] * (x.dim() - 2))]
