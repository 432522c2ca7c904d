"""Tables of which workers keep rows between the steps that need them, as the servers decide (`leases`).

A row of a step is *pulled* and its gradient pushed, as without a cache; or it is *taken*: pulled with its optimizer state and
kept; or it stays; or it is *returned* with its state when the step is done. While a worker keeps a row it updates the row
itself, by the servers' rule: it is the only one that looks it up, so training is the same as without a cache.

Servers announce with the rows of a step what they have decided for the step after it, so both sides know all shapes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.runtime.embedding.exchange import Shape
from autotune.runtime.embedding.layout import Layout, Request, request
from autotune.runtime.embedding.leases import Decision, LeasePlanner
from autotune.runtime.embedding.row_cache import RowCache
from autotune.runtime.embedding.rules import Rule
from autotune.runtime.embedding.shard import Gradients
from autotune.runtime.embedding.tables import Passes, ShardedTables


@dataclass(frozen=True, slots=True)
class _Served:
    """What a server has decided for the rows of one worker in a step."""

    pulled: Tensor
    taken: Tensor
    returned: Tensor
    keeps: Tensor
    """A flag per row of the worker's request."""

    @classmethod
    def of(cls, places: Tensor, decision: Decision) -> _Served:
        has, keeps = torch.from_numpy(decision.has), torch.from_numpy(decision.keeps)
        return cls(places[~has & ~keeps], places[~has & keeps], places[has & ~keeps], keeps.to(torch.uint8))


@dataclass(frozen=True, slots=True)
class _Present:
    """The rows of a worker's present step."""

    request: Request
    numbers: Tensor
    """In the cache."""
    has: Tensor
    keeps: Tensor
    whole: Tensor
    """Of the rows that it has or will keep: weights and state."""

    @property
    def taken(self) -> Tensor:
        return ~self.has & self.keeps

    @property
    def cached(self) -> Tensor:
        """Updated by the worker."""
        return self.has | self.keeps

    def per_server(self, some: Tensor) -> list[int]:
        """How many of the rows of this mask each server has."""
        return [int(part.sum()) for part in self.request.split(some)]

    def split(self, rows: Tensor, some: Tensor) -> list[Tensor]:
        """What belongs to each server, of what there is for the rows of this mask."""
        counts = self.per_server(some)
        parts = dict(zip(self.request.order, rows.split([counts[rank] for rank in self.request.order]), strict=True))
        return [parts[rank] for rank in range(len(counts))]


class CachedTables(ShardedTables):
    """One rank. Calls as of `ShardedTables`."""

    def __init__(  # noqa: PLR0913 - those of ShardedTables, and the cache
        self,
        layout: Layout,
        weights: Mapping[str, Tensor],
        rule: Rule,
        group: dist.ProcessGroup,
        *,
        cache_rows: int,
        look_ahead: int,
    ) -> None:
        """`cache_rows`: that each worker may keep, of each server in proportion to its rows. `look_ahead`: the steps whose lookups
        servers know.
        """
        super().__init__(layout, weights, rule, group)
        self.ahead = look_ahead + 1
        shares = [cache_rows * count // max(sum(layout.num_rows), 1) for count in layout.num_rows]
        rank, size = self.exchange.rank, self.exchange.size
        self._planner = LeasePlanner(layout.num_rows[rank], size, shares[rank], look_ahead)
        self._cache = RowCache(layout.num_rows, sum(shares), self.shard.values)
        self._undecided: deque[list[Tensor]] = deque()
        """Per step: the rows of each worker on this server."""
        self._served: deque[list[_Served]] = deque()
        """Of each worker, for the present step and the next one."""
        self._keeps = torch.zeros(0, dtype=torch.bool)
        """Of the rows of the next request: which this rank will keep."""
        self._present: _Present | None = None
        self._num_steps = 0

    def begin(self, steps: Sequence[Passes]) -> None:
        """Pull the rows of the first step; `steps`: the lookups of the first `ahead` ones."""
        self._requests.extend(request(self.layout, passes) for passes in steps)
        self._num_next = self.exchange.counts(self._requests[0].counts)
        nothing = [()] * self.exchange.size
        for number in range(len(steps) - 1):
            self._announce(number, nothing, nothing)
        self._decide()
        keeps = self.exchange.swap(
            [[served.keeps] for served in self._served[0]], [[Shape(torch.uint8, n)] for n in self._requests[0].counts]
        )
        self._keeps = self._joined([one for (one,) in keeps]).bool()
        self._pull()

    def push(self, later: Passes, scale: float = 1.0) -> None:
        """End a step, as without a cache; the rows that this rank keeps it updates itself."""
        assert self._present is not None, "begin comes first"
        now, gradients = self._present, self._gradients(scale)
        self._requests.popleft()
        self._requests.append(request(self.layout, later))
        self._num_steps += 1
        cached, returned = now.cached, now.has & ~now.keeps
        self.shard.rule.update(now.whole, gradients[cached], self._num_steps)
        self._cache.drop(now.numbers[returned])
        self._cache.put(now.numbers[now.taken])
        self._cache.write(now.numbers[now.keeps], now.whole[now.keeps[cached]])
        back = now.split(now.whole[returned[cached]], returned)
        pushed = now.split(gradients[~cached], ~cached)
        served = self._served.popleft()
        shapes = [(self._shape(len(one.pulled)), self._whole(len(one.returned))) for one in served]
        given = self._announce(len(self._requests) - 2, list(zip(pushed, back, strict=True)), shapes)
        for one, (_, values) in zip(served, given, strict=True):
            self.shard.values[one.returned] = values
        self.shard.apply([Gradients(one.pulled, own) for one, (own, _) in zip(served, given, strict=True)])
        self._pull()

    def gather(self, take: Callable[[str, slice, Tensor], None]) -> None:
        """As without a cache; rows that workers keep are copied to their servers first."""
        held = self._cache.held()
        counts = self.exchange.counts([len(places) for places in held])
        messages = [(places, self._cache.rows_of(server, places)) for server, places in enumerate(held)]
        shapes = [(Shape(torch.int64, count), self._whole(count)) for count in counts]
        for places, values in self.exchange.swap(messages, shapes):
            self.shard.values[places] = values
        super().gather(take)

    @property
    def num_bytes(self) -> int:
        """Of the rows on this rank, its own and those that it keeps, with their state."""
        return self.shard.num_bytes + self._cache.num_bytes

    def _announce(
        self, number: int, parts: Sequence[Sequence[Tensor]], shapes: Sequence[Sequence[Shape]]
    ) -> list[list[Tensor]]:
        """Send the rows of a request to their servers, with how many the next one has, and with other parts; returns those that
        workers sent here.
        """
        asked_for = self._requests[number]
        places, later = asked_for.split(asked_for.places), self._requests[number + 1].counts
        messages = [(torch.tensor([n]), own, *more) for n, own, more in zip(later, places, parts, strict=True)]
        expected = [
            (Shape(torch.int64, 1), Shape(torch.int32, n), *more)
            for n, more in zip(self._num_next, shapes, strict=True)
        ]
        found = self.exchange.swap(messages, expected)
        asked = [one[1].long() for one in found]
        self._num_next = [int(one[0]) for one in found]
        self._planner.add([one.numpy() for one in asked])
        self._undecided.append(asked)
        return [one[2:] for one in found]

    def _decide(self) -> None:
        self._served.append(
            [_Served.of(*one) for one in zip(self._undecided.popleft(), self._planner.plan(), strict=True)]
        )

    def _pull(self) -> None:
        """The rows of the first request, and what servers have decided for the second one."""
        self._decide()
        first, second = self._requests[0], self._requests[1]
        numbers = self._cache.numbers(first)
        now = _Present(first, numbers, self._cache.has(numbers), self._keeps, self.shard.values[:0])
        pulled, cached = ~now.cached, now.cached
        messages = [
            (self.shard.read(one.pulled), self.shard.values.index_select(0, one.taken), later.keeps)
            for one, later in zip(*self._served, strict=True)
        ]
        sizes = zip(now.per_server(pulled), now.per_server(now.taken), second.counts, strict=True)
        found = self.exchange.swap(
            messages, [(self._shape(some), self._whole(whole), Shape(torch.uint8, all_)) for some, whole, all_ in sizes]
        )
        self._keeps = self._joined([keeps for _, _, keeps in found]).bool()
        whole = self.shard.values.new_empty((int(cached.sum()), self.shard.values.shape[1]))
        whole[now.taken[cached]] = self._joined([values for _, values, _ in found])
        whole[now.has[cached]] = self._cache.rows(numbers[now.has])
        rows = self.shard.values.new_empty((len(numbers), self.shard.width))
        rows[pulled] = self._joined([weights for weights, _, _ in found])
        rows[cached] = whole[:, : self.shard.width]
        self._present = replace(now, whole=whole)
        self._rows = rows.requires_grad_()

    def _joined(self, of_ranks: Sequence[Tensor]) -> Tensor:
        """As the rows of a request are sorted."""
        return torch.cat([of_ranks[rank] for rank in self.layout.order])

    def _whole(self, num_rows: int) -> Shape:
        """Of rows with their state."""
        return Shape(self.shard.values.dtype, num_rows, self.shard.values.shape[1])
