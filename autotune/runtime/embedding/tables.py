"""The tables of one width on one rank: its share of their rows, and the rows that its batches need.

A step pulls every row that a batch looks up once, pools them locally, and pushes one gradient per row. Servers add the
workers' gradients up in rank order, update their rows, and send the rows of the next step. So the tables are, step by step,
those that a model in one process has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.runtime.embedding.exchange import Exchange, Pushed
from autotune.runtime.embedding.layout import Layout, Lookup, Pooling, Request, request
from autotune.runtime.embedding.pooling import pool
from autotune.runtime.embedding.rules import Rule
from autotune.runtime.embedding.shard import Gradients, Shard

Passes = Sequence[Mapping[str, Lookup]]
"""What each pass of a step looks up, per table."""


class ShardedTables:
    """One rank. The thread that trains makes all calls, the same on all ranks: `begin`, then per step `pooled` and `push`."""

    def __init__(self, layout: Layout, weights: Mapping[str, Tensor], rule: Rule, group: dist.ProcessGroup) -> None:
        """`weights`: the whole tables as they begin."""
        some = next(iter(weights.values()))
        self.layout, self._group = layout, group
        self.shard = Shard(layout, group.rank(), weights, rule)
        self.exchange = Exchange(group, self.shard.width, some.dtype)
        self._rows = some.new_zeros((0, self.shard.width))
        self._requests: deque[Request] = deque()
        self._asked: list[Tensor] = []
        """Of each worker: the rows of the present step."""
        self._num_next: list[int] = []
        """Of each worker: how many rows of the next step it needs."""

    def begin(self, first: Passes, second: Passes) -> None:
        """Pull the rows of the first step; `second`: the lookups of the step after it."""
        for passes in (first, second):
            self._requests.append(request(self.layout, passes))
        self._asked = [torch.zeros(0, dtype=torch.int64)] * self._group.size()
        self._num_next = self.exchange.counts(self._requests[0].counts)
        self._round([self._rows] * self._group.size(), self._requests[0], self._requests[1], is_step=False)

    def pooled(self, number: int) -> list[Tensor]:
        """The sums of the bags of each table, in the pass of this number."""
        part: Pooling = self._requests[0].passes[number]
        return list(pool(self._rows, part).split(list(part.num_bags)))

    def push(self, later: Passes, scale: float = 1.0) -> None:
        """End a step: push the gradients of its rows, times `scale`, and pull the rows of the next step. `later`: the lookups of
        the step after that one.
        """
        done = self._requests.popleft()
        self._requests.append(request(self.layout, later))
        gradients = self._rows.grad if self._rows.grad is not None else torch.zeros_like(self._rows)
        if scale != 1.0:
            gradients = gradients * scale
        self._round(list(gradients.split(done.counts)), self._requests[0], self._requests[1], is_step=True)

    def close(self) -> None:
        """Release the group."""
        self.exchange.close()
        del self._group

    def gather(self, take: Callable[[str, slice, Tensor], None]) -> None:
        """Pass on the rows of all servers: the table, which of its rows, and their weights; a collective call."""
        for rank, pieces in enumerate(self.layout.pieces):
            if not pieces:
                continue
            shape = self.layout.num_rows[rank], self.shard.width
            is_own = rank == self._group.rank()
            weights = self.shard.weights.contiguous() if is_own else self._rows.detach().new_empty(shape)
            options = dist.BroadcastOptions()
            options.rootRank = rank
            self._group.broadcast([weights], options).wait()
            for piece in pieces:
                take(piece.table, slice(piece.first, None, piece.step), weights[piece.place])

    def _round(self, gradients: Sequence[Tensor], after: Request, later: Request, *, is_step: bool) -> None:
        places = after.places.split(after.counts)
        messages = [Pushed(*one) for one in zip(gradients, places, later.counts, strict=True)]
        pushed = self.exchange.push(messages, [len(asked) for asked in self._asked], self._num_next)
        if is_step:
            self.shard.apply([Gradients(*one) for one in zip(self._asked, (p.gradients for p in pushed), strict=True)])
        self._asked, self._num_next = [one.places for one in pushed], [one.num_later for one in pushed]
        rows = self.exchange.rows([self.shard.read(asked) for asked in self._asked], after.counts)
        self._rows = rows.requires_grad_()
