"""What ranks send each other: all-to-alls of messages whose parts both sides know the shapes of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_ALIGNED = 8
"""Bytes: parts of a message are viewed as numbers."""
_NOTHING, _NO_PLACES = torch.zeros(0, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)
Read = Callable[[Tensor, Tensor | None], Tensor]
"""The rows at some places, written to the second tensor if there is one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a part that is received."""

    dtype: torch.dtype
    num_rows: int
    width: int = 0
    """0: the part has one dimension."""

    @property
    def num_bytes(self) -> int:
        return self.num_rows * max(self.width, 1) * self.dtype.itemsize

    def view(self, part: Tensor) -> Tensor:
        numbers = part[: self.num_bytes].view(self.dtype)
        return numbers.view(self.num_rows, self.width) if self.width else numbers


class Exchange:
    """All-to-alls between all ranks of a group. One thread makes all calls, the same in the same order on all ranks."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group: Any = group
        self.rank, self.size = group.rank(), group.size()
        self.sent_bytes = 0
        """By this rank to other ranks, since the start."""

    def counts(self, own: Sequence[int]) -> list[int]:
        """One number to each rank, and one from each."""
        found = torch.empty(self.size, dtype=torch.int64)
        self._run(found, torch.tensor(own, dtype=torch.int64), [1] * self.size, [1] * self.size)
        return [int(number) for number in found.tolist()]

    def swap(self, messages: Sequence[Sequence[Tensor]], shapes: Sequence[Sequence[Shape]]) -> list[list[Tensor]]:
        """A message of some parts to each rank, and one from each, whose parts have these shapes."""
        found = torch.empty(sum(self._lengths(shapes)), dtype=torch.uint8)
        given = [[] if rank == self.rank else _packed(parts) for rank, parts in enumerate(messages)]
        lengths = [sum(map(len, parts)) for parts in given]
        self._run(found, torch.cat([_NOTHING, *chain(*given)]), self._lengths(shapes), lengths)
        parts = zip(found.split(self._lengths(shapes)), shapes, strict=True)
        return [
            list(messages[rank]) if rank == self.rank else _parts(part, of_rank)
            for rank, (part, of_rank) in enumerate(parts)
        ]

    def rows(self, read: Read, asked: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
        """Rows that `read` finds at the places which each rank has asked for; returns `counts` rows of each rank, own ones last."""
        others = [0 if rank == self.rank else count for rank, count in enumerate(counts)]
        given = read(torch.cat([_NO_PLACES, *(one for rank, one in enumerate(asked) if rank != self.rank)]), None)
        found = given.new_empty((sum(counts), given.shape[1]))
        lengths = [0 if rank == self.rank else len(one) for rank, one in enumerate(asked)]
        self._run(found[: sum(others)], given, others, lengths)
        read(asked[self.rank], found[sum(others) :])
        return found

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """The root's tensor to all ranks."""
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._group.broadcast([tensor], options).wait()

    def close(self) -> None:
        """Release the group."""
        del self._group

    def _lengths(self, shapes: Sequence[Sequence[Shape]]) -> list[int]:
        """Bytes from each rank; what a rank sends itself is not sent."""
        return [
            0 if rank == self.rank else sum(_aligned(shape.num_bytes) for shape in of_rank)
            for rank, of_rank in enumerate(shapes)
        ]

    def _run(self, found: Tensor, given: Tensor, found_splits: list[int], given_splits: list[int]) -> None:
        row_bytes = given.element_size() * (given.shape[1] if given.dim() > 1 else 1)
        self.sent_bytes += row_bytes * len(given)
        self._group.alltoall_base(found, given, found_splits, given_splits).wait()


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNED) * _ALIGNED


def _packed(parts: Sequence[Tensor]) -> list[Tensor]:
    """The bytes of the parts, each of which begins aligned."""
    found: list[Tensor] = []
    for part in parts:
        if part.numel():
            as_bytes = part.contiguous().view(-1).view(torch.uint8)
            found.append(as_bytes)
            if fill := _aligned(len(as_bytes)) - len(as_bytes):
                found.append(as_bytes.new_zeros(fill))
    return found


def _parts(message: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
    lengths = [_aligned(shape.num_bytes) for shape in shapes]
    return [shape.view(part) for shape, part in zip(shapes, message.split(lengths), strict=True)]
