"""Attributes the time of a forward and backward pass to the model's ops, as autotune.workloads.capture does with costs.

In forward, hooks record when a module begins and ends; time belongs to the innermost running module, and time outside every
module to the loss. In backward, time belongs to the module whose output gradient arrived last: a hook on each output
switches to its module, and a hook on an input that no module produced switches to the enclosing module. This is exact
because autograd runs nodes in reverse order of creation and accumulates a module's gradients before it continues. All time
from `begin` to `end` is attributed; recomputed forwards (checkpointing) count as backward.
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
    """Hooks on a model during the context. Made after a DevicePacer of the same model, so that it measures its sleeps."""

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
                # First: the sleep of a pacer's hook on the output belongs to this module in backward …
                module.register_forward_hook(self._mark_hook(name), prepend=True),
                # … and last: the sleep of a pacer after the module belongs to it in forward.
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
        """Begin a pass now."""
        self._clear()
        self._since_s = self._now()

    def forward_done(self) -> None:
        """End forward: backward begins now, with that of the loss."""
        self._charge()
        self._is_forward, self._stack = False, [LOSS]

    def end(self) -> dict[str, tuple[float, float]]:
        """End backward; forward and backward seconds of each op."""
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
        """When the gradients of these tensors arrive, backward is at op `name`. The module that made a tensor marks it first."""
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
