"""The plain deduplicating all-to-all that servers of embedding tables are compared with.

Ids are made unique per rank, their numbers and then the ids go to the owners (row r on rank r mod n), the rows come back and
are pooled by one `embedding_bag`; gradients per row go to the owners, who add them to their rows (SGD).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class PlainAllToAll:
    """Tables of one width and of equally many rows, as one range of rows."""

    def __init__(self, group: Any, tables: list[Tensor], lr: float) -> None:
        self._group, self._lr, self._size = group, lr, group.size()
        self._num_rows = len(tables[0])
        self._rows = torch.cat(tables)[group.rank() :: self._size].clone()

    def step(self, ids: list[Tensor], offsets: list[Tensor], loss: Callable[[Sequence[Tensor]], Tensor]) -> None:
        """One step of a loss of the bags of each table: ids and offsets per table."""
        joined = torch.cat([one + number * self._num_rows for number, one in enumerate(ids)])
        begins = torch.cat([one + sum(map(len, ids[:number])) for number, one in enumerate(offsets)])
        # Sorted by owner: the key of a row is its owner, then its place there.
        keys = (joined % self._size) * (1 << 40) + joined // self._size
        unique, inverse = torch.unique(keys, return_inverse=True)
        owners, places = unique >> 40, unique & ((1 << 40) - 1)
        sent = torch.bincount(owners, minlength=self._size)
        received = torch.empty_like(sent)
        self._all_to_all(received, sent, [1] * self._size, [1] * self._size)
        mine, theirs = sent.tolist(), received.tolist()
        asked = places.new_empty(sum(theirs))
        self._all_to_all(asked, places, theirs, mine)
        rows = self._rows.new_empty((len(unique), self._rows.shape[1]))
        self._all_to_all(rows, self._rows.index_select(0, asked), mine, theirs)
        rows.requires_grad_()
        pooled = functional.embedding_bag(inverse, rows, begins, mode="sum")
        loss(pooled.split([len(one) for one in offsets])).backward()
        assert rows.grad is not None
        gradients = self._rows.new_empty((len(asked), self._rows.shape[1]))
        self._all_to_all(gradients, rows.grad, theirs, mine)
        self._rows.scatter_add_(0, asked[:, None].expand_as(gradients), gradients.mul_(-self._lr))

    def rows(self) -> Tensor:
        """Those of this rank."""
        return self._rows

    def _all_to_all(self, found: Tensor, given: Tensor, found_splits: list[int], given_splits: list[int]) -> None:
        self._group.alltoall_base(found, given, found_splits, given_splits).wait()
