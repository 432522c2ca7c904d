"""Which module is entered before each parameter is first read, found by watching one forward pass.

A wait for a parameter's update belongs there. The module that owns a parameter is not always it: a `MultiheadAttention`
hands its `out_proj`'s weight to a function and never calls `out_proj`; tied weights are read where they are used first.
Every read is an op that the dispatcher sees with the parameter as an argument.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class FirstReads(TorchDispatchMode):
    """Watches `model` until it has returned once. `readers` is complete then."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.readers: dict[int, nn.Module] = {}
        """Parameter (by id) → the innermost module that ran when it was first read."""
        self.entered: set[nn.Module] = set()
        self._stack: list[nn.Module] = []
        self._handles = [
            handle
            for module in model.modules()
            for handle in (
                module.register_forward_pre_hook(self._enter, prepend=True),
                module.register_forward_hook(self._leave, always_call=True),
            )
        ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._stack:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, nn.Parameter):
                    self.readers.setdefault(id(leaf), self._stack[-1])
        return func(*args, **(kwargs or {}))

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        if not self._stack:
            self.__enter__()  # type: ignore[no-untyped-call]
        self._stack.append(module)
        self.entered.add(module)

    def _leave(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._stack and self._stack[-1] is module:
            self._stack.pop()
            if not self._stack:
                self.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def waiting_modules(
    model: nn.Module, reads: FirstReads, parameters: Iterable[nn.Parameter]
) -> dict[nn.Module, set[int]]:
    """For each module, the parameters (by id) to wait for before it runs: where they were first read, and their owner if it
    runs; those that were not read at all, before the model as a whole.
    """
    waits: dict[nn.Module, set[int]] = defaultdict(set)
    wanted = {id(p) for p in parameters}
    for key in wanted:
        waits[reads.readers.get(key, model)].add(key)
    for module in reads.entered:
        for parameter in module.parameters(recurse=False):
            if id(parameter) in wanted:
                waits[module].add(id(parameter))
    return waits
