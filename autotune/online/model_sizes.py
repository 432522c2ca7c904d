"""What of a model decides how its gradients are best sent: how large its tensors are, and when they are there and needed.

Classifiers with large last layers (vgg) and models that are alike from end to end (gpt) differ in just that. Moments are
shares of a pass's work, which is close to its time, so that they hold on any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Self

from autotune.workloads.graph import Op, OpGraph

BIN_EDGES_BYTES = (2**12, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24)
"""Tensors are counted by size between these."""
_WIDTH = 4
"""Bytes of a value, of a parameter whose shape is not noted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSizes:
    """The trainable tensors of a model, in the order their gradients appear: the last parameter's first."""

    sizes_bytes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    ready: tuple[float, ...]
    """The moment of the backward pass, 0 to 1, at which each gradient is there."""
    needed: tuple[float, ...]
    """The moment of the forward pass at which each tensor is read."""

    @classmethod
    def of(cls, graph: OpGraph) -> Self:
        tensors = list(reversed(graph.parameters))
        order = {op.name: index for index, op in enumerate(graph.ops)}
        owners = [order[tensor.op] for tensor in tensors]
        starts = [0.0, *_moments([_work(op) for op in graph.ops])]
        ends = _moments([_work(op) * op.backward_factor for op in reversed(graph.ops)])
        return cls(
            sizes_bytes=tuple(tensor.num_bytes for tensor in tensors),
            shapes=tuple(tensor.shape or (max(tensor.num_bytes // _WIDTH, 1),) for tensor in tensors),
            ready=tuple(ends[len(ends) - 1 - owner] for owner in owners),
            needed=tuple(starts[owner] for owner in owners),
        )

    @classmethod
    def of_parameters(cls, shapes: Sequence[tuple[int, ...]], sizes_bytes: Sequence[int]) -> Self:
        """Of a model whose work nobody has counted, its parameters in order: every tensor is taken to be as much of a pass."""
        count = max(len(shapes), 1)
        return cls(
            sizes_bytes=tuple(reversed(sizes_bytes)),
            shapes=tuple(reversed(shapes)),
            ready=tuple((place + 1) / count for place in range(len(shapes))),
            needed=tuple(1 - (place + 1) / count for place in range(len(shapes))),
        )

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes_bytes)

    @property
    def largest_share(self) -> float:
        return max(self.sizes_bytes, default=0) / max(self.total_bytes, 1)

    @property
    def element_bytes(self) -> int:
        return max(self.total_bytes // max(sum(map(prod, self.shapes)), 1), 1)

    def histogram(self) -> tuple[float, ...]:
        """Share of the bytes in tensors of each size."""
        counts = [0] * (len(BIN_EDGES_BYTES) + 1)
        for size in self.sizes_bytes:
            counts[sum(size >= edge for edge in BIN_EDGES_BYTES)] += size
        return tuple(count / max(self.total_bytes, 1) for count in counts)

    def ready_share(self, moment: float) -> float:
        """Share of the bytes whose gradients are there at a moment of the backward pass."""
        return self._share(self.ready, moment)

    def needed_share(self, moment: float) -> float:
        """Share of the bytes that the forward pass has read by a moment."""
        return self._share(self.needed, moment)

    def _share(self, moments: Sequence[float], moment: float) -> float:
        found = sum(size for size, at in zip(self.sizes_bytes, moments, strict=True) if at <= moment)
        return found / max(self.total_bytes, 1)


def _work(op: Op) -> float:
    """In proportion to time, near enough: most time goes where the arithmetic is."""
    return op.flops_per_sample + op.bytes_per_sample


def _moments(work: Sequence[float]) -> list[float]:
    """When each of a row of ops ends, as a share of all."""
    total = sum(work) or 1.0
    return [min(end / total, 1.0) for end in accumulate(work)]
