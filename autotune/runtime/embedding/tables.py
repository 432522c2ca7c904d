"""The tables of one width on one rank: its share of their rows, and the rows that its batches need.

A step pulls every row that a batch looks up once, pools them locally, and pushes one gradient per row. Servers add the
workers' gradients up in rank order, update their rows, and send the rows of the next step. So the tables are, step by step,
those that a model in one process has. With the gradients go the rows that the next step needs, and how many the step after
that will need, so that every message is as long as its receiver knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.runtime.embedding.exchange import Exchange, Shape
from autotune.runtime.embedding.layout import Layout, Lookup, Request, request
from autotune.runtime.embedding.pooling import pool
from autotune.runtime.embedding.rules import Rule
from autotune.runtime.embedding.shard import Gradients, Shard

Passes = Sequence[Mapping[str, Lookup]]
"""What each pass of a step looks up, per table."""


class ShardedTables:
    """One rank. The thread that trains makes all calls, the same on all ranks: `begin`, then per step `pooled` and `push`."""

    ahead = 2
    """The steps that `begin` needs."""

    def __init__(self, layout: Layout, weights: Mapping[str, Tensor], rule: Rule, group: dist.ProcessGroup) -> None:
        """`weights`: the whole tables as they begin."""
        self.layout, self.exchange = layout, Exchange(group)
        self.shard = Shard(layout, group.rank(), weights, rule)
        self._rows = self.shard.values.new_zeros((0, self.shard.width))
        self._requests: deque[Request] = deque()
        self._asked = [torch.zeros(0, dtype=torch.int64)] * group.size()
        """Of each worker: the rows of the present step."""
        self._num_next: list[int] = []
        """Of each worker: how many rows of the next step it needs."""

    def begin(self, steps: Sequence[Passes]) -> None:
        """Pull the rows of the first step; `steps`: the lookups of the first `ahead` ones."""
        self._requests.extend(request(self.layout, passes) for passes in steps)
        self._num_next = self.exchange.counts(self._requests[0].counts)
        self._round([self._rows] * self.exchange.size, is_step=False)

    def pooled(self, number: int) -> list[Tensor]:
        """The sums of the bags of each table, in the pass of this number."""
        part = self._requests[0].passes[number]
        return list(pool(self._rows, part).split(list(part.num_bags)))

    def push(self, later: Passes, scale: float = 1.0) -> None:
        """End a step: push the gradients of its rows, times `scale`, and pull the rows of the next step. `later`: the lookups of
        the step that is `ahead` steps later.
        """
        done = self._requests.popleft()
        self._requests.append(request(self.layout, later))
        self._round(done.split(self._gradients(scale)), is_step=True)

    def close(self) -> None:
        """Release the group."""
        self.exchange.close()

    def gather(self, take: Callable[[str, slice, Tensor], None]) -> None:
        """Pass on the rows of all servers: the table, which of its rows, and their weights; a collective call."""
        for rank, pieces in enumerate(self.layout.pieces):
            if not pieces:
                continue
            shape = self.layout.num_rows[rank], self.shard.width
            is_own = rank == self.exchange.rank
            weights = self.shard.weights.contiguous() if is_own else self.shard.values.new_empty(shape)
            self.exchange.broadcast(weights, rank)
            for piece in pieces:
                take(piece.table, slice(piece.first, None, piece.step), weights[piece.place])

    @property
    def num_bytes(self) -> int:
        """Of the rows on this rank, with their state."""
        return self.shard.num_bytes

    def _gradients(self, scale: float) -> Tensor:
        found = self._rows.grad if self._rows.grad is not None else torch.zeros_like(self._rows)
        return found if scale == 1.0 else found * scale

    def _round(self, gradients: Sequence[Tensor], *, is_step: bool) -> None:
        """Push, and pull the rows of the first request."""
        after, later = self._requests[0], self._requests[1]
        messages = [
            (torch.tensor([num_later]), places, own)
            for num_later, places, own in zip(later.counts, after.split(after.places), gradients, strict=True)
        ]
        shapes = [
            (Shape(torch.int64, 1), Shape(torch.int32, num_places), self._shape(len(asked)))
            for num_places, asked in zip(self._num_next, self._asked, strict=True)
        ]
        pushed = self.exchange.swap(messages, shapes)
        if is_step:
            self.shard.apply([Gradients(asked, own) for asked, (_, _, own) in zip(self._asked, pushed, strict=True)])
        self._asked = [places.long() for _, places, _ in pushed]
        self._num_next = [int(num_later) for num_later, _, _ in pushed]
        rows = self.exchange.rows(self.shard.read, self._asked, after.counts)
        self._rows = rows.requires_grad_()

    def _shape(self, num_rows: int) -> Shape:
        return Shape(self.shard.values.dtype, num_rows, self.shard.width)
