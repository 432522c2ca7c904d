"""The properties of a model that decide how its gradients are best sent: tensor sizes, and when each is ready and needed.

A classifier with large last layers (vgg) and a model with equal layers (gpt) differ in exactly these. Moments are shares
of a pass's work. Work is close to time, so the same moments apply to every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Self

from autotune.workloads.graph import Op, OpGraph

BIN_EDGES_BYTES = (2**12, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24)
"""Edges of the histogram of tensor sizes."""
_WIDTH = 4
"""Bytes per value of a parameter whose shape is not recorded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSizes:
    """The trainable tensors of a model, in the order in which their gradients become ready: the last parameter first."""

    sizes_bytes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    ready: tuple[float, ...]
    """The moment of the backward pass, 0 to 1, at which each gradient is ready."""
    needed: tuple[float, ...]
    """The moment of the forward pass at which each tensor is read."""
    kinds: tuple[str, ...]
    """The class of the module that owns each tensor, such as "Linear": a plan may have a codec for each."""

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
            kinds=tuple(tensor.kind for tensor in tensors),
        )

    @classmethod
    def of_parameters(cls, shapes: Sequence[tuple[int, ...]], sizes_bytes: Sequence[int], kinds: Sequence[str]) -> Self:
        """Of a model without counted work, given its parameters in order: every tensor takes an equal share of a pass."""
        count = max(len(shapes), 1)
        return cls(
            sizes_bytes=tuple(reversed(sizes_bytes)),
            shapes=tuple(reversed(shapes)),
            ready=tuple((place + 1) / count for place in range(len(shapes))),
            needed=tuple(1 - (place + 1) / count for place in range(len(shapes))),
            kinds=tuple(reversed(kinds)),
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
        """Share of the bytes in tensors of each size class."""
        counts = [0] * (len(BIN_EDGES_BYTES) + 1)
        for size in self.sizes_bytes:
            counts[sum(size >= edge for edge in BIN_EDGES_BYTES)] += size
        return tuple(count / max(self.total_bytes, 1) for count in counts)

    def ready_share(self, moment: float) -> float:
        """Share of the bytes whose gradients are ready at a moment of the backward pass."""
        return self._share(self.ready, moment)

    def needed_share(self, moment: float) -> float:
        """Share of the bytes that the forward pass has read by a moment."""
        return self._share(self.needed, moment)

    def _share(self, moments: Sequence[float], moment: float) -> float:
        found = sum(size for size, at in zip(self.sizes_bytes, moments, strict=True) if at <= moment)
        return found / max(self.total_bytes, 1)


def _work(op: Op) -> float:
    """Roughly proportional to time: arithmetic dominates."""
    return op.flops_per_sample + op.bytes_per_sample


def _moments(work: Sequence[float]) -> list[float]:
    """The end of each op, as a share of all work."""
    total = sum(work) or 1.0
    return [min(end / total, 1.0) for end in accumulate(work)]
