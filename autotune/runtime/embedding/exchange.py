"""What workers and servers send each other in a step: two all-to-alls.

A worker pushes the gradients of a step together with the rows that it needs in the next one and with how many it will need in
the step after that: so every message is as long as its receiver knows. The servers reply with the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_ALIGNED = 8
"""Bytes: slices of a message are viewed as numbers."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """What one worker sends one server."""

    gradients: Tensor
    """Of the rows that it had asked for."""
    places: Tensor
    """The rows that it needs next."""
    num_later: int
    """How many rows it needs after those."""


class Exchange:
    """All-to-alls between all ranks of a group. One thread makes all calls, the same in the same order on all ranks."""

    def __init__(self, group: dist.ProcessGroup, width: int, dtype: torch.dtype) -> None:
        self._group, self._width, self._dtype = group, width, dtype
        self._size = group.size()
        self.sent_bytes = 0
        """By this rank to other ranks, since the start."""

    def counts(self, own: Sequence[int]) -> list[int]:
        """One number to each rank, and one from each."""
        found = torch.empty(self._size, dtype=torch.int64)
        self._run(found, torch.tensor(own, dtype=torch.int64), [1] * self._size, [1] * self._size)
        return [int(number) for number in found.tolist()]

    def push(self, messages: Sequence[Pushed], num_gradients: Sequence[int], num_places: Sequence[int]) -> list[Pushed]:
        """A message to each rank, and one from each, with as many gradients and places as stated."""
        parts = [_packed(one) for one in messages]
        lengths = [
            _ALIGNED + _aligned(places * 4) + _aligned(rows * self._row_bytes)
            for rows, places in zip(num_gradients, num_places, strict=True)
        ]
        found = torch.empty(sum(lengths), dtype=torch.uint8)
        self._run(found, torch.cat(parts), lengths, [len(part) for part in parts])
        return [
            self._unpacked(part, rows, places)
            for part, rows, places in zip(found.split(lengths), num_gradients, num_places, strict=True)
        ]

    def rows(self, own: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
        """Rows to each rank, and `counts` rows from each, one rank's after another's."""
        found = torch.empty((sum(counts), self._width), dtype=self._dtype)
        self._run(found, torch.cat(list(own)), list(counts), [len(rows) for rows in own])
        return found

    def close(self) -> None:
        """Release the group."""
        del self._group

    @property
    def _row_bytes(self) -> int:
        return self._width * self._dtype.itemsize

    def _unpacked(self, message: Tensor, num_gradients: int, num_places: int) -> Pushed:
        ends = accumulate((_ALIGNED, _aligned(num_places * 4), _aligned(num_gradients * self._row_bytes)), initial=0)
        head, places, gradients = (message[begin:end] for begin, end in pairwise(ends))
        return Pushed(
            gradients[: num_gradients * self._row_bytes].view(self._dtype).view(num_gradients, self._width),
            places[: num_places * 4].view(torch.int32).long(),
            int(head.view(torch.int64)),
        )

    def _run(self, found: Tensor, given: Tensor, found_splits: list[int], given_splits: list[int]) -> None:
        group: Any = self._group
        rank = group.rank()
        self.sent_bytes += given.element_size() * given[:1].numel() * (len(given) - given_splits[rank])
        group.alltoall_base(found, given, found_splits, given_splits).wait()


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNED) * _ALIGNED


def _packed(one: Pushed) -> Tensor:
    """The number of rows after the next, the next rows, the gradients; each begins aligned."""
    parts = [torch.tensor([one.num_later]).view(torch.uint8)]
    for part in (one.places.int(), one.gradients.reshape(-1)):
        if not part.numel():
            continue
        as_bytes = part.contiguous().view(torch.uint8)
        parts.append(as_bytes)
        if fill := _aligned(len(as_bytes)) - len(as_bytes):
            parts.append(as_bytes.new_zeros(fill))
    return torch.cat(parts)
