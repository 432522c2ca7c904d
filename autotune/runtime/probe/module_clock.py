"""Splits the time of a forward and backward pass among the model's ops, as autotune.workloads.capture splits their costs.

Forward, hooks note when a module begins and ends, and time belongs to the innermost one that runs; what runs outside
every module is the loss. Backward, time belongs to the module whose output's gradient arrived last: a hook on each
output says "from here on it is this module", and a hook on an input that no module made says "from here on it is the
module around". That is exact because autograd runs what was made later first, and accumulates a module's gradients
before it goes on. Every moment from `begin` to `end` is some op's; recomputed forwards (checkpointing) count as
backward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from autotune.workloads.capture import LOSS


class ModuleClock:
    """Hooks on a model while the context lasts. Made after a DevicePacer of the same model, whose sleeps it must see."""

    def __init__(self, model: nn.Module, now: Callable[[], float]) -> None:
        self._now = now
        self._names = {module: name or "(model)" for name, module in model.named_modules()}
        self._handles: list[Any] = []
        self._marked: set[tuple[Any, int]] = set()
        self._clear()

    def __enter__(self) -> Self:
        for module, name in self._names.items():
            self._handles += [
                module.register_forward_pre_hook(self._enter_hook(name), with_kwargs=True),
                # First, so that a backward that a pacer prolongs by a hook on the output is already this module's …
                module.register_forward_hook(self._mark_hook(name), prepend=True),
                # … and last, so that what a pacer sleeps after the module is still this module's.
                module.register_forward_hook(self._leave_hook()),
            ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._clear()

    def begin(self) -> None:
        """A pass begins now."""
        self._clear()
        self._since_s = self._now()

    def forward_done(self) -> None:
        """The loss is there; backward begins now, with the loss's own."""
        self._charge()
        self._is_forward, self._stack = False, [LOSS]

    def end(self) -> dict[str, tuple[float, float]]:
        """Backward is done; seconds of each op forward and backward."""
        self._charge()
        names = {**self._forward_s, **self._backward_s}
        times = {name: (self._forward_s[name], self._backward_s[name]) for name in names}
        self._clear()
        return times

    def _clear(self) -> None:
        self._forward_s: dict[str, float] = defaultdict(float)
        self._backward_s: dict[str, float] = defaultdict(float)
        self._stack = [LOSS]
        self._is_forward = True
        self._since_s = 0.0
        self._marked.clear()

    def _charge(self) -> None:
        now_s = self._now()
        seconds = self._forward_s if self._is_forward else self._backward_s
        seconds[self._stack[-1]] += now_s - self._since_s
        self._since_s = now_s

    def _enter_hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, inputs: Any, keywords: Any) -> None:
            if self._is_forward:
                self._mark((inputs, keywords), self._stack[-1])
                self._charge()
                self._stack.append(name)

        return hook

    def _mark_hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if self._is_forward:
                self._mark(output, name)

        return hook

    def _leave_hook(self) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _inputs: Any, _output: Any) -> None:
            if self._is_forward:
                self._charge()
                self._stack.pop()

        return hook

    def _mark(self, tree: Any, name: str) -> None:
        """When these tensors' gradients arrive, backward is at op `name`; whoever made a tensor marks it first."""
        for tensor in tree_leaves(tree):
            if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                key = (tensor.grad_fn, tensor.output_nr)
                if key not in self._marked:
                    self._marked.add(key)
                    tensor.register_hook(self._arrival_hook(name))

    def _arrival_hook(self, name: str) -> Callable[[Tensor], None]:
        def hook(_gradient: Tensor) -> None:
            if not self._is_forward:
                self._charge()
                self._stack = [name]

        return hook
