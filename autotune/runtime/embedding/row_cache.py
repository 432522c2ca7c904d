"""The rows that a worker keeps, with their optimizer state. Rows are numbered over all servers, one server's after another's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from autotune.runtime.embedding.layout import Request


class RowCache:
    """Used by one thread. A table of places finds a row at once; it takes 4 bytes for each row of the tables."""

    def __init__(self, num_rows: Sequence[int], capacity: int, like: Tensor) -> None:
        """`num_rows`: of each server. `like`: rows of a server, with their state."""
        self._begins = torch.tensor(list(accumulate(num_rows, initial=0)))
        self._slots = torch.full((int(self._begins[-1]),), -1, dtype=torch.int32)
        self._values = like.new_zeros((capacity, like.shape[1]))
        self._free = torch.arange(capacity, dtype=torch.int32)
        self._num_free = capacity

    def numbers(self, request: Request) -> Tensor:
        """Of the rows of a request."""
        begins = self._begins[request.order]
        return request.places + begins.repeat_interleave(torch.tensor(request.num_rows))

    def has(self, numbers: Tensor) -> Tensor:
        """Which of these rows are kept."""
        return self._slots[numbers] >= 0

    def put(self, numbers: Tensor) -> None:
        """Make places for these rows, which are not kept yet; `write` fills them."""
        self._num_free -= len(numbers)
        assert self._num_free >= 0, "servers decide for as many rows as the cache has places"
        self._slots[numbers] = self._free[self._num_free : self._num_free + len(numbers)]

    def rows(self, numbers: Tensor) -> Tensor:
        """These rows, which are kept."""
        return self._values.index_select(0, self._slots[numbers])

    def write(self, numbers: Tensor, rows: Tensor) -> None:
        """Change these rows, which are kept."""
        self._values[self._slots[numbers]] = rows

    def drop(self, numbers: Tensor) -> None:
        """Keep these rows no longer."""
        self._free[self._num_free : self._num_free + len(numbers)] = self._slots[numbers]
        self._num_free += len(numbers)
        self._slots[numbers] = -1

    def held(self) -> list[Tensor]:
        """The places of all rows that are kept, per server."""
        numbers = (self._slots >= 0).nonzero()[:, 0]
        ends = torch.searchsorted(numbers, self._begins[1:])
        parts = numbers.tensor_split(ends[:-1].tolist())
        return [part - begin for part, begin in zip(parts, self._begins, strict=False)]

    def rows_of(self, server: int, places: Tensor) -> Tensor:
        """Rows of a server, which are kept."""
        return self.rows(places + self._begins[server])

    @property
    def num_bytes(self) -> int:
        return self._values.numel() * self._values.element_size() + 4 * len(self._slots)
