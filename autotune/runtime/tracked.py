"""Parameters whose reads wait for updates and gradients in flight.

With cross-step overlap, a parameter's new value and the sum of its gradient may arrive after `step()` and `backward()`
have returned. A script may read either at any time: the forward pass, a moving average, clipping, a logged norm. All of
these are torch functions of the parameter, so a subclass of `nn.Parameter` intercepts each of them
(`__torch_function__`) and waits first. `track` changes the class of the script's parameter objects in place, as torch's
lazy modules do; `untrack` changes it back.

Reads that are no torch functions of the parameter do not wait: those of a view that was taken before (`x = p.data`),
and those inside TorchScript.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn

_TRACKER = "_autotune_tracker"
raw: Callable[[], Any] = torch._C.DisableTorchFunctionSubclass
"""Context in which reads and writes of parameters do not wait."""
_GRADIENT: Any = Tensor.grad
_READ_GRADIENT, _WRITE_GRADIENT = _GRADIENT.__get__, _GRADIENT.__set__
_METADATA = frozenset(
    [
        *(
            getattr(Tensor, name).__get__
            for name in (
                *("shape", "dtype", "device", "layout", "requires_grad", "is_leaf", "ndim", "is_nested"),
                *(
                    "is_sparse",
                    "is_quantized",
                    "is_mkldnn",
                    "is_cuda",
                    "is_cpu",
                    "is_meta",
                    "grad_fn",
                    "itemsize",
                    "nbytes",
                ),
            )
        ),
        Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
        *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.stride, Tensor.element_size, Tensor.requires_grad_),
        *(Tensor.is_complex, Tensor.is_floating_point, Tensor.is_contiguous, Tensor.register_hook, torch.is_complex),
        *(Tensor.__len__, torch.numel, torch.is_floating_point, Tensor.register_post_accumulate_grad_hook),
    ]
)
"""Reads that do not depend on the values."""


class Tracker(Protocol):
    """Waits for what is in flight for one parameter. Called by the thread that reads the parameter."""

    def await_value(self) -> None:
        """Return once the parameter's last update is complete."""

    def await_gradient(self) -> None:
        """Return once its gradient is the sum over all ranks, or this rank's own if it has not been sent."""

    def drop_gradient(self) -> None:
        """The script sets the gradient to None."""


class Tracked(nn.Parameter):
    """A parameter of the script while steps overlap."""

    plain: type = nn.Parameter
    """Its class while they do not."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == _READ_GRADIENT:
            _tracker(args[0]).await_gradient()
        elif func == _WRITE_GRADIENT and args[1] is None:
            _tracker(args[0]).drop_gradient()
        elif func == _WRITE_GRADIENT:
            _tracker(args[0]).await_gradient()
        elif func not in _METADATA:
            for tracked in _tracked_in((args, kwargs)):
                _tracker(tracked).await_value()
        with raw():
            return func(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.detach().clone(memory_format=torch.preserve_format), self.requires_grad)
        copied: nn.Parameter = memo[id(self)]
        return copied

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """Saved as a plain parameter, so that a checkpoint does not depend on this module."""
        return torch._utils._rebuild_parameter, (self.data, self.requires_grad, OrderedDict())


def track(parameter: nn.Parameter, tracker: Tracker) -> None:
    setattr(parameter, _TRACKER, tracker)
    parameter.__class__ = _tracked_class(type(parameter))


def untrack(parameter: nn.Parameter) -> None:
    if isinstance(parameter, Tracked):
        parameter.__class__ = parameter.plain  # it is one of them
        delattr(parameter, _TRACKER)


def can_track(parameters: Iterable[Tensor]) -> bool:
    """Whether all are plain parameters, or hold their values in a way of their own (`__torch_dispatch__`). Those whose class
    changes what torch functions do keep that behaviour.
    """
    disabled = torch._C._disabled_torch_function_impl
    return all(isinstance(p, Tracked) or type(p).__torch_function__ is disabled for p in parameters)


@cache
def _tracked_class(plain: type) -> type:
    if plain is nn.Parameter or issubclass(plain, Tracked):
        return Tracked if plain is nn.Parameter else plain
    return type(f"Tracked{plain.__name__}", (Tracked, plain), {"plain": plain})


def accumulator_of(parameter: Tensor) -> Any:
    """Autograd's node that accumulates the parameter's gradient. It lives as long as a reference to it."""
    with raw(), torch.enable_grad():
        return parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def _tracker(parameter: Any) -> Tracker:
    found: Tracker = parameter.__dict__[_TRACKER]
    return found


def _tracked_in(values: Any) -> Iterable[Tracked]:
    """At any depth of lists, tuples and dicts."""
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, Tracked):
            yield value
        elif isinstance(value, list | tuple | dict):
            yield from _tracked_in(value)
