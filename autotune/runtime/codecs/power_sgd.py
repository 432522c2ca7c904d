"""Each matrix as the product of two thin factors, found by one step of power iteration (Vogels et al., "PowerSGD", 2019).

With M_r the matrix that rank r owes and Q from the last step (the first: random, the same on all ranks):
P = Σ M_r·Q, its columns made orthonormal; Q_r = M_rᵀ·P; Q = Σ Q_r. The result is P·Qᵀ = P·Pᵀ·Σ M_r, and rank r's part of it
P·Q_rᵀ, which is what it no longer owes. (torch's hook takes the mean of the result out of every rank's memory instead: then
only the sum of all memories is right, and each may grow for as long as ranks differ.)

Vectors, and matrices whose factors would not be smaller, travel as they are beside the P's. Tensors of more dimensions are
seen as (first, all others). Left out: the momentum of the paper's SGD, and a rank that changes while training.
On devices of different kinds results may differ by rounding: P is made orthonormal, and multiplied, on each of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autotune.runtime.codecs.protocol import SUM, Round
from autotune.workloads.plan.wire import Shape, as_matrix

_SEED = 2019
"""Any, so long as all ranks begin with the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """A parameter's place in the unit."""

    start: int
    size: int
    matrix: tuple[int, int] | None
    """Rows and columns; None: travels as it is."""

    def of(self, flat: Tensor) -> Tensor:
        values = flat[self.start : self.start + self.size]
        return values if self.matrix is None else values.view(self.matrix)


class PowerSgd:
    """Of one unit. See `error_feedback.Lossy`."""

    name = "powersgd"

    def __init__(self, shapes: Sequence[Shape], low_rank: int) -> None:
        parts, start = [], 0
        for shape in shapes:
            parts.append(_Part(start=start, size=math.prod(shape), matrix=as_matrix(shape, low_rank)))
            start += parts[-1].size
        self._plain = [part for part in parts if part.matrix is None]
        self._matrices = [part for part in parts if part.matrix is not None]
        self._p_sizes = [(part.matrix[0], low_rank) for part in self._matrices if part.matrix]
        self._q_sizes = [(part.matrix[1], low_rank) for part in self._matrices if part.matrix]
        self._ps: list[Tensor] = []
        self._qs: list[Tensor] = []
        self._random_qs: list[Tensor] = []

    def send(self, owed: Tensor) -> Round:
        if not self._qs:
            self._qs = self._random_qs = _random(self._q_sizes, owed)
        self._ps = []
        plain = [part.of(owed) for part in self._plain]
        ps = [part.of(owed) @ q for part, q in zip(self._matrices, self._qs, strict=True)]
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
        """Kept beside the wire tensors: the P's during a step, two sets of Q's (the last and the first) for ever."""
        plain = sum(part.size for part in self._plain)
        ps, qs = (sum(map(math.prod, sizes)) for sizes in (self._p_sizes, self._q_sizes))
        return (plain + 2 * ps + 3 * qs) * flat.element_size()

    def _receive_ps(self, wire: Tensor, flat: Tensor) -> None:
        pieces = _apart(wire, [*((part.size,) for part in self._plain), *self._p_sizes])
        for part, values in zip(self._plain, pieces, strict=False):
            part.of(flat).copy_(values)
        self._ps = [orthonormal(p) for p in pieces[len(self._plain) :]]

    def _own_qs(self, owed: Tensor) -> list[Tensor]:
        """This rank's part of the Q's, which with the P's is what it need no longer owe."""
        qs = []
        for part, p in zip(self._matrices, self._ps, strict=True):
            matrix = part.of(owed)
            qs.append(matrix.T @ p)
            matrix.addmm_(p, qs[-1].T, alpha=-1)  # M_r - P·Q_rᵀ
        return qs

    def _receive_qs(self, wire: Tensor, flat: Tensor) -> None:
        qs = _apart(wire, self._q_sizes)
        for part, p, q in zip(self._matrices, self._ps, qs, strict=True):
            torch.mm(p, q.T, out=part.of(flat))
        self._qs = [scaled_columns(q, spare) for q, spare in zip(qs, self._random_qs, strict=True)]
        self._ps = []


def orthonormal(matrix: Tensor) -> Tensor:
    """The columns by modified Gram-Schmidt; one that the others leave nothing of becomes zero.

    Such a column is mere rounding, which a QR would make a unit vector of, and another one on another device.
    """
    info = torch.finfo(matrix.dtype)
    smallest = math.sqrt(info.eps)
    columns: list[Tensor] = []
    # Scaled: the squares of small gradients are zero.
    for column in (matrix / matrix.abs().amax(dim=0).clamp(min=info.tiny)).unbind(dim=1):
        left = column
        for other in columns:
            left = left - other * (other @ left)
        norm = left.norm()
        # False for nan and inf, which must stay, to be seen.
        is_empty = (norm < smallest * column.norm()) | (norm == 0)
        columns.append(torch.where(is_empty, 0.0, left / norm))
    return torch.stack(columns, dim=1)


def scaled_columns(matrix: Tensor, spare: Tensor) -> Tensor:
    """Columns whose largest value is 1, lest P, which is of second order in the gradient, leave the range of its type.

    A column that is zero would stay so for ever, as would one that is not finite: `spare`'s takes its place.
    """
    sizes = matrix.abs().amax(dim=0)
    return torch.where(sizes.isfinite() & (sizes > 0), matrix / sizes, spare)


def _random(sizes: Sequence[tuple[int, int]], like: Tensor) -> list[Tensor]:
    """Drawn on the CPU: other devices draw other numbers from the same seed."""
    generator = torch.Generator().manual_seed(_SEED)
    return [torch.randn(size, generator=generator).to(like) for size in sizes]


def _side_by_side(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]) if tensors else like.new_zeros(0)


def _apart(wire: Tensor, sizes: Sequence[Shape]) -> list[Tensor]:
    return [piece.view(size) for piece, size in zip(wire.split(list(map(math.prod, sizes))), sizes, strict=True)]
