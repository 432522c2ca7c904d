"""Parameters that wait, when they are used, for what is still on its way to them.

While steps overlap, a parameter's new value and the sum of its gradient may arrive after `step()` and `backward()` have
returned. A script may use either at any time: the forward pass, a moving average, clipping, a logged norm. All of these are
torch functions of the parameter, so a subclass of `nn.Parameter` sees each of them (`__torch_function__`) and waits first.
The class of the script's own parameter objects is changed in place, as torch's lazy modules do, and back again by `untrack`.

What torch functions do not see is not waited for: a view of a parameter or a gradient that was taken before (`x = p.data`)
and kept, and reads inside TorchScript.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

_TRACKER = "_autotune_tracker"
raw: Callable[[], Any] = torch._C.DisableTorchFunctionSubclass
"""Context in which parameters are read and written as they are."""
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
    """Completes what is on its way to one parameter."""

    def await_value(self) -> None:
        """The parameter's last update is complete."""

    def await_gradient(self) -> None:
        """Its gradient is that of all ranks, or this rank's own where it has not been sent."""

    def drop_gradient(self) -> None:
        """The script sets it to None."""


class Tracked(nn.Parameter):
    """A parameter of the script while steps overlap."""

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
        """As a plain parameter: what is saved does not depend on this module."""
        return torch._utils._rebuild_parameter, (self.data, self.requires_grad, OrderedDict())


def track(parameter: nn.Parameter, tracker: Tracker) -> None:
    setattr(parameter, _TRACKER, tracker)
    parameter.__class__ = Tracked


def untrack(parameter: nn.Parameter) -> None:
    if type(parameter) is Tracked:
        parameter.__class__ = nn.Parameter  # type: ignore[assignment] # it is one of them
        delattr(parameter, _TRACKER)


def can_track(parameters: Iterable[Tensor]) -> bool:
    """A class of the script's own keeps its own behaviour."""
    return all(type(parameter) in (nn.Parameter, Tracked) for parameter in parameters)


def accumulator_of(parameter: Tensor) -> Any:
    """Autograd's node that adds to the parameter's gradient. It lives as long as something holds it."""
    with raw(), torch.enable_grad():
        return parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def _tracker(parameter: Any) -> Tracker:
    found: Tracker = parameter.__dict__[_TRACKER]
    return found


def _tracked_in(values: Any) -> Iterable[Tracked]:
    """At any depth of lists, tuples and dicts."""
    for value in values.values() if isinstance(values, dict) else values:
        if type(value) is Tracked:
            yield value
        elif isinstance(value, list | tuple | dict):
            yield from _tracked_in(value)
