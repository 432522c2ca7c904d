"""Split backward: gradients of a part's inputs first, those of its weights later, without computing anything twice.

Zero-bubble schedules (Qi et al. 2023) delay the weight half. A layer's weight gradient needs its input, which autograd has saved,
and the gradient of its output. The input half requests the latter from autograd as well, and in the weight half autograd runs
from each layer's output to its parameters only. A parameter with another path in the graph (a layer that is called twice,
shared weights, parameters beside submodules or read from outside) would be missed or counted twice: with such a parameter
the weight half runs the whole backward again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class WeightParts:
    """The layers of one part."""

    def __init__(self, module: nn.Module) -> None:
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._layers = [one for one in module.modules() if any(p.requires_grad for p in one.parameters(recurse=False))]

    @contextmanager
    def noting(self) -> Iterator[Notes]:
        """Records the layers while the part runs forward."""
        notes = Notes(self._parameters)
        handles = [layer.register_forward_hook(notes.called) for layer in self._layers]
        try:
            yield notes
        finally:
            for handle in handles:
                handle.remove()


class Notes:
    """The inputs of one micro-batch's weight half."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self._calls: list[tuple[nn.Module, Any]] = []
        self._known: list[tuple[list[nn.Parameter], Tensor, Tensor]] | None = None
        """Per layer: its parameters, its output and the gradient of it. None: run the whole backward."""

    def called(self, layer: nn.Module, _inputs: Any, output: Any) -> None:
        self._calls.append((layer, output))

    def inputs(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """The input half: store the gradients in the inputs."""
        calls = [(layer, made) for layer, made in self._calls if isinstance(made, Tensor) and made.requires_grad]
        self._calls.clear()
        is_plain = self._is_plain(calls, outputs)
        wanted = [*inputs, *(made for _, made in calls)] if is_plain else list(inputs)
        if not outputs or not wanted:
            return
        found = torch.autograd.grad(outputs, wanted, gradients, retain_graph=True, allow_unused=True)
        for value, gradient in zip(inputs, found, strict=False):
            value.grad = gradient
        if is_plain:
            pairs = zip(calls, found[len(inputs) :], strict=True)
            self._known = [(_own(layer), made, gradient) for (layer, made), gradient in pairs if gradient is not None]

    def weights(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """The weight half: accumulate the gradients of the weights."""
        if self._known is not None:
            for own, made, gradient in self._known:
                torch.autograd.backward([made], [gradient], inputs=own)
            self._known = None
        elif outputs and self._parameters:
            torch.autograd.backward(outputs, gradients, inputs=self._parameters)

    def _is_plain(self, calls: Sequence[tuple[nn.Module, Tensor]], outputs: Sequence[Tensor]) -> bool:
        """Whether each parameter that counts belongs to one layer that was called once, and is read once."""
        owners = Counter(id(p) for layer, _ in calls for p in _own(layer))
        is_leaf = not any(True for layer, _ in calls for _ in layer.children())
        reads = _reads(outputs)
        used = [id(p) for p in self._parameters if reads[id(p)]]
        return is_leaf and all(owners[one] == 1 and reads[one] == 1 for one in used)


def _own(layer: nn.Module) -> list[nn.Parameter]:
    return [p for p in layer.parameters(recurse=False) if p.requires_grad]


def _reads(outputs: Sequence[Tensor]) -> Counter[int]:
    """Per leaf: the number of edges of autograd's graph that lead to it."""
    found: Counter[int] = Counter()
    waiting: list[Any] = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is None:
                continue
            if hasattr(node, "variable"):
                found[id(node.variable)] += 1
            elif node not in seen:
                seen.add(node)
                waiting.append(node)
    return found
