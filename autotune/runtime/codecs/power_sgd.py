"""Each matrix as the product of two low-rank matrices, by one step of power iteration (Vogels et al., "PowerSGD",
2019).

With M_r the matrix that rank r owes and Q from the last step (at first random, the same on all ranks): P = Σ M_r·Q, its
columns made orthonormal; Q_r = M_rᵀ·P; Q = Σ Q_r. The result is P·Qᵀ = P·Pᵀ·Σ M_r. Rank r contributes P·Q_rᵀ, which is
subtracted from what it owes. (torch's hook subtracts the mean of the result from every rank's residual instead: then
only the sum of all residuals is right, and each may grow as long as ranks differ.)

Vectors, and matrices whose P and Q would not be smaller, are sent uncompressed beside the P's. Tensors of more
dimensions are viewed as (first, all others). Left out: the momentum of the paper's SGD, and a low rank that changes
during training. On devices of different kinds results may differ by rounding: each device orthonormalises and
multiplies P itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from autotune.runtime.codecs.protocol import SUM, Round
from autotune.workloads.plan.wire import Shape, as_matrix

if TYPE_CHECKING:
    from autotune.runtime.codecs.factory import BufferShape
    from autotune.workloads.plan import CompressionPlan

_SEED = 2019
"""Any number that is the same on all ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Segment:
    """A parameter's place in the fusion buffer."""

    start: int
    size: int
    matrix: tuple[int, int] | None
    """Rows and columns; None: sent uncompressed."""

    def of(self, flat: Tensor) -> Tensor:
        values = flat[self.start : self.start + self.size]
        return values if self.matrix is None else values.view(self.matrix)


class PowerSgd:
    """The codec of one fusion buffer. See `error_feedback.Lossy`."""

    name = "powersgd"

    def __init__(self, shapes: Sequence[Shape], low_rank: int) -> None:
        segments, start = [], 0
        for shape in shapes:
            segments.append(_Segment(start=start, size=math.prod(shape), matrix=as_matrix(shape, low_rank)))
            start += segments[-1].size
        self._plain = [segment for segment in segments if segment.matrix is None]
        self._matrices = [segment for segment in segments if segment.matrix is not None]
        self._p_sizes = [(segment.matrix[0], low_rank) for segment in self._matrices if segment.matrix]
        self._q_sizes = [(segment.matrix[1], low_rank) for segment in self._matrices if segment.matrix]
        self._ps: list[Tensor] = []
        self._qs: list[Tensor] = []
        self._random_qs: list[Tensor] = []

    def send(self, owed: Tensor) -> Round:
        if not self._qs:
            self._qs = self._random_qs = _random(self._q_sizes, owed)
        self._ps = []
        plain = [segment.of(owed) for segment in self._plain]
        ps = [segment.of(owed) @ q for segment, q in zip(self._matrices, self._qs, strict=True)]
        wire = _side_by_side([*plain, *ps], owed)
        for values in plain:
            values.zero_()
        return Round(kind=SUM, tensors=(wire,))

    def receive(self, received: Sequence[Tensor], owed: Tensor, flat: Tensor) -> Round | None:
        if self._ps:
            self._receive_qs(received[0], flat)
            return None
        self._receive_ps(received[0], flat)
        if not self._ps:
            return None
        return Round(kind=SUM, tensors=(_side_by_side(self._own_qs(owed), owed),))

    def buffer_bytes(self, flat: Tensor) -> int:
        """Beside the wire tensors: the P's during a step, and two sets of Q's (the last and the first) all the time."""
        plain = sum(segment.size for segment in self._plain)
        ps, qs = (sum(map(math.prod, sizes)) for sizes in (self._p_sizes, self._q_sizes))
        return (plain + 2 * ps + 3 * qs) * flat.element_size()

    def _receive_ps(self, wire: Tensor, flat: Tensor) -> None:
        pieces = _apart(wire, [*((segment.size,) for segment in self._plain), *self._p_sizes])
        for segment, values in zip(self._plain, pieces, strict=False):
            segment.of(flat).copy_(values)
        self._ps = [orthonormal(p) for p in pieces[len(self._plain) :]]

    def _own_qs(self, owed: Tensor) -> list[Tensor]:
        """The Q_r of this rank; subtracts P·Q_rᵀ from what it owes."""
        qs = []
        for segment, p in zip(self._matrices, self._ps, strict=True):
            matrix = segment.of(owed)
            qs.append(matrix.T @ p)
            matrix.addmm_(p, qs[-1].T, alpha=-1)  # M_r - P·Q_rᵀ
        return qs

    def _receive_qs(self, wire: Tensor, flat: Tensor) -> None:
        qs = _apart(wire, self._q_sizes)
        for segment, p, q in zip(self._matrices, self._ps, qs, strict=True):
            torch.mm(p, q.T, out=segment.of(flat))
        self._qs = [scaled_columns(q, spare) for q, spare in zip(qs, self._random_qs, strict=True)]
        self._ps = []


def orthonormal(matrix: Tensor) -> Tensor:
    """The columns by modified Gram-Schmidt; a column that depends linearly on the others becomes zero.

    Such a column is rounding noise. A QR decomposition would normalise it, to a different vector on each kind of
    device.
    """
    info = torch.finfo(matrix.dtype)
    smallest = math.sqrt(info.eps)
    columns: list[Tensor] = []
    # Scaled, because the squares of small gradients underflow.
    for column in (matrix / matrix.abs().amax(dim=0).clamp(min=info.tiny)).unbind(dim=1):
        left = column
        for other in columns:
            left = left - other * (other @ left)
        norm = left.norm()
        # False for nan and inf, which must stay in the result.
        is_empty = (norm < smallest * column.norm()) | (norm == 0)
        columns.append(torch.where(is_empty, 0.0, left / norm))
    return torch.stack(columns, dim=1)


def scaled_columns(matrix: Tensor, spare: Tensor) -> Tensor:
    """Columns scaled to a largest value of 1: P, which is of second order in the gradient, could leave the range of its
    type.

    A column that is zero, or not finite, would stay so in all later steps: that of `spare` replaces it.
    """
    sizes = matrix.abs().amax(dim=0)
    return torch.where(sizes.isfinite() & (sizes > 0), matrix / sizes, spare)


def _random(sizes: Sequence[tuple[int, int]], like: Tensor) -> list[Tensor]:
    """Drawn on the CPU, because other devices draw other numbers from the same seed."""
    generator = torch.Generator().manual_seed(_SEED)
    return [torch.randn(size, generator=generator).to(like) for size in sizes]


def _side_by_side(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]) if tensors else like.new_zeros(0)


def _apart(wire: Tensor, sizes: Sequence[Shape]) -> list[Tensor]:
    return [piece.view(size) for piece, size in zip(wire.split(list(map(math.prod, sizes))), sizes, strict=True)]


def make(compression: CompressionPlan, buffer: BufferShape) -> PowerSgd:
    """As a plan names it."""
    return PowerSgd(buffer.shapes, compression.low_rank)
