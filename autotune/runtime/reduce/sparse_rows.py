"""Sparse gradients of embedding tables: only the rows that a batch has used are sent.

Every rank gathers the rows (indices and values) of all ranks and adds them in rank order. The result is a sparse
gradient, as optimizers such as SparseAdam require; where a table also has a dense gradient (tied weights) the result is
dense.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from autotune.runtime.codecs.protocol import GATHER, Round
from autotune.runtime.reduce.fusion_buffer import FusionBuffer
from autotune.runtime.tracked import raw

_HEADER = 8
"""Bytes: whether the rank's gradient is dense."""
_INDEX_BYTES = 8


class SparseRows:
    """The codec of one table: rows of all ranks, concatenated. Reads `outgoing` and writes `gradient`, no flat tensor."""

    name = "sparse"
    is_lossless = True

    def __init__(self, table: nn.Parameter) -> None:
        # The table itself is not kept: reading a tracked parameter waits for its update, which waits for this codec.
        with raw():
            self._shape, self._like = table.shape, table.detach().new_empty(0)
            self._row_bytes = table[0].numel() * table.element_size()
        self.outgoing: Tensor | None = None
        self.gradient: Tensor | None = None
        """The sum over ranks."""

    def encode(self, flat: Tensor) -> Round:  # noqa: ARG002 - the gradient has no flat form
        return Round(kind=GATHER, tensors=(self._wire(),))

    def decode(self, received: Sequence[Tensor], flat: Tensor) -> None:  # noqa: ARG002
        rows = [self._rows(wire) for wire in received]
        indices, values = torch.cat([of_rank[0] for of_rank in rows]), torch.cat([of_rank[1] for of_rank in rows])
        total = torch.sparse_coo_tensor(indices[None], values, self._shape, check_invariants=False).coalesce()
        self.gradient = total.to_dense() if any(of_rank[2] for of_rank in rows) else total

    def buffer_bytes(self, flat: Tensor) -> int:  # noqa: ARG002 - depends on the batch
        return 0

    def _wire(self) -> Tensor:
        gradient, self.outgoing = self.outgoing, None
        if gradient is None:
            return torch.zeros(_HEADER, dtype=torch.uint8, device=self._like.device)
        is_dense = gradient.layout == torch.strided
        rows = gradient.to_sparse(1) if is_dense else gradient.coalesce()
        header = torch.full((_HEADER,), int(is_dense), dtype=torch.uint8, device=self._like.device)
        indices = rows.indices()[0].contiguous().view(torch.uint8)
        return torch.cat((header, indices, rows.values().contiguous().reshape(-1).view(torch.uint8)))

    def _rows(self, wire: Tensor) -> tuple[Tensor, Tensor, bool]:
        num_rows = (wire.numel() - _HEADER) // (_INDEX_BYTES + self._row_bytes)
        # `view` needs aligned memory, which a slice of the received bytes may not have: copy.
        header, indices, values = wire.split((_HEADER, num_rows * _INDEX_BYTES, num_rows * self._row_bytes))
        shape = (num_rows, *self._shape[1:])
        return indices.clone().view(torch.int64), values.clone().view(self._like.dtype).view(shape), bool(header[0])


class SparseBuffer(FusionBuffer):
    """The fusion buffer of one table; its gradient stays in the tensor that autograd has allocated."""

    codec: SparseRows
    takes_sparse = True

    def __init__(self, index: int, table: nn.Parameter, optimizer_index: int | None) -> None:
        super().__init__(index, [nn.Parameter(table.detach().new_zeros(1))], SparseRows(table), optimizer_index)
        self.parameters = [table]

    def enter(self, number: int) -> None:
        super().enter(number)
        self._has_gaps = True  # the result is a new tensor each time

    def take(self, place: int) -> None:
        """Nothing to copy."""

    @property
    def is_edited(self) -> bool:
        """Not detected: autograd allocates a new sparse tensor for each sum."""
        return False

    def close(self) -> list[int]:
        (table,), scale = self.parameters, self.scale
        gradient = table.grad
        self.codec.outgoing = gradient if gradient is None or scale in (None, 1.0) else gradient * scale
        self.is_shown = self.is_applied = False
        return [0] if gradient is None else []

    def result(self, place: int) -> Tensor | None:
        return None if place in self.unused else self.codec.gradient

    def _zero(self) -> None:
        if self.codec.gradient is not None:
            self.codec.gradient.zero_()
