"""Checks that a workload's loss is what the runtime assumes: one finite scalar tensor with a gradient, the mean over samples.

Ranks with unequal batches weight their gradients by b_i/B (or by `loss_weights`), which is exact only for a mean. So the
loss of four samples must be the weighted mean of the losses of the first two and the last two, in eval mode, where dropout
and BatchNorm treat samples independently. If eval mode fails, is random, or has layers that combine samples, the check
concludes nothing. Each call has a batch of its own, because a loss may modify its batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autotune.workloads.errors import AutotuneError, SpecError
from autotune.workloads.workload import Workload

TOLERANCE = 1e-4
"""Relative to the largest of the compared losses."""
_ROUNDINGS = 4
"""In half precision: this many times its machine epsilon."""
_REPEATS = 1e-6
_FIRST, _SECOND, _ALL = (0, 2), (2, 4), (0, 4)
_RULE = "return one scalar tensor, the mean over samples"

Fetch = Callable[[Tensor], Any]


def check_loss(workload: Workload, model: nn.Module, fetch: Fetch, *, name: str) -> None:
    """Refuse a loss that cannot be trained. `fetch`: the samples of these indices as a batch; `name`: of the workload."""
    with torch.random.fork_rng(devices=[]), _as_it_was(model):
        first = _loss(workload, model, fetch, _FIRST, name)
        _check_kind(first, name)
        _check_mean(workload, model, fetch, name)


def _check_kind(loss: Any, name: str) -> None:
    if not isinstance(loss, Tensor):
        raise SpecError(f"{name}: loss() returned {_described(loss)}; {_RULE}{_hint(loss)}")
    if loss.numel() != 1:
        raise SpecError(f"{name}: loss() returned a tensor of shape {tuple(loss.shape)}; {_RULE} (`.mean()`)")
    if not loss.requires_grad:
        raise SpecError(
            f"{name}: loss() returned a tensor without a gradient; compute it from the model's output, without .detach(), "
            "torch.no_grad() or .item()"
        )
    if not math.isfinite(value := float(loss.detach())):
        raise SpecError(
            f"{name}: loss() is {value} for the first samples of the data set, before any training; look for {value} in the "
            "data, and for a log or a division by zero in the loss"
        )


def _described(loss: Any) -> str:
    kind = type(loss).__name__
    return "None" if loss is None else f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _hint(loss: Any) -> str:
    if isinstance(loss, Mapping) and "loss" in loss:
        return ' (`out["loss"]`)'
    if hasattr(loss, "loss"):
        return " (`out.loss`)"
    if isinstance(loss, tuple | list) and loss and isinstance(loss[0], Tensor) and loss[0].numel() == 1:
        return " (`out[0]`)"
    return " (without .item())" if isinstance(loss, float) else ""


def _check_mean(workload: Workload, model: nn.Module, fetch: Fetch, name: str) -> None:
    found = _eval_losses(workload, model, fetch)
    if found is None:
        return
    whole, first, second, tolerance = found
    shares = _shares(workload)
    mean = shares[0] * first + shares[1] * second
    scale = max(abs(whole), abs(first), abs(second))
    if abs(whole - mean) <= tolerance * scale:
        return
    parts = f"{first:.6g} for two samples, {second:.6g} for the next two"
    if abs(whole - (first + second)) <= tolerance * scale:
        raise SpecError(
            f"{name}: loss() is a sum over samples: {parts}, {whole:.6g} for all four; return the mean over samples "
            '(reduction="mean"), which ranks with unequal batches rely on'
        )
    raise SpecError(
        f"{name}: loss() is not the mean over samples: {parts}, so four have {mean:.6g} as their mean, but loss() gives "
        f"{whole:.6g}; return the mean over samples, or state what each sample counts as `loss_weights` (its tokens)"
    )


def _eval_losses(workload: Workload, model: nn.Module, fetch: Fetch) -> tuple[float, float, float, float] | None:
    """The losses of four samples, the first two and the last two, and the tolerance; None if the check is inconclusive."""
    if any(isinstance(module, _BatchNorm) and module.running_mean is None for module in model.modules()):
        return None  # such layers combine samples in eval mode too
    model.eval()
    precision = _Precision()
    losses = []
    try:
        with torch.no_grad(), precision:
            for seed, samples in enumerate((_ALL, _ALL, _FIRST, _SECOND)):  # randomness shows in the first two
                torch.manual_seed(seed)
                losses.append(float(workload.loss(model, fetch(torch.arange(*samples)))))
    except Exception:  # noqa: BLE001 - a user's model need not have an eval mode
        return None
    whole, again, first, second = losses
    if not all(map(math.isfinite, losses)) or abs(whole - again) > _REPEATS * abs(whole):
        return None
    return whole, first, second, max(TOLERANCE, _ROUNDINGS * precision.eps)


def _shares(workload: Workload) -> tuple[float, float]:
    """The weights of the first two of four samples and of the last two."""
    weights = getattr(workload, "loss_weights", None)
    if weights is None:
        return 0.5, 0.5
    counted = torch.as_tensor(weights(workload.dataset()))[:4].double()
    share = float(counted[:2].sum() / counted.sum())
    return share, 1 - share


def _loss(workload: Workload, model: nn.Module, fetch: Fetch, samples: tuple[int, int], name: str) -> Any:
    batch = fetch(torch.arange(*samples))
    try:
        return workload.loss(model, batch)
    except AutotuneError:
        raise
    except Exception as error:
        raise SpecError(f"{name}: loss() raised {type(error).__name__}: {error}") from error


class _Precision(TorchDispatchMode):
    """The largest machine epsilon of any op's result."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.eps = 0.0

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                self.eps = max(self.eps, torch.finfo(leaf.dtype).eps)
        return out


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Restores the mode and the buffers of the model."""
    modes = {module: module.training for module in model.modules()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for name, buffer in model.named_buffers():
            if name in buffers:
                buffer.data.copy_(buffers[name])
