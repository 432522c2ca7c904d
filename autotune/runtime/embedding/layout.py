"""Where every row of a set of tables is: its server rank, and its place there.

A table is on one server, or its rows are dealt to all of them: row r is on server r mod n. The rows of all tables of a server
stand one after another. A key is position · stride + place, so that sorted keys are sorted by server: the servers' positions
are those of their ranks, except that a rank's own rows come last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from autotune.workloads.plan.embedding import EmbeddingPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table of the model."""

    name: str
    num_rows: int
    width: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Rows `first`, `first + step`, … of a table, which stand at `place` of a server."""

    table: str
    first: int
    step: int
    place: slice


class Layout:
    """Tables of one width on `num_ranks` ranks, of which those that hold rows are servers."""

    def __init__(
        self, tables: Sequence[Table], plan: EmbeddingPlan, servers: Sequence[int], rank: int, num_ranks: int
    ) -> None:
        """As this rank asks for rows."""
        self.tables = {table.name: table for table in tables}
        self.order = [*(other for other in range(num_ranks) if other != rank), rank]
        """The ranks by position."""
        self.pieces: tuple[list[Piece], ...] = tuple([] for _ in range(num_ranks))
        self.num_rows = [0] * num_ranks
        """Of each rank."""
        for table in tables:
            owners = [owner] if (owner := plan.owner_of(table.name)) is not None else list(servers)
            for first, server in enumerate(owners):
                count = len(range(first, table.num_rows, len(owners)))
                place = slice(self.num_rows[server], self.num_rows[server] + count)
                self.pieces[server].append(Piece(table=table.name, first=first, step=len(owners), place=place))
                self.num_rows[server] += count
        self.stride = max([1, *self.num_rows])
        self._starts = {name: torch.tensor(list(self._starts_of(name))) for name in self.tables}
        self._ends = self.stride * np.arange(num_ranks + 1)

    def keys(self, name: str, ids: Tensor) -> Tensor:
        """The keys of a table's rows."""
        table, starts = self.tables[name], self._starts[name]
        if len(ids):
            low, high = ids.aminmax()
            if low < 0 or high >= table.num_rows:
                raise IndexError(
                    f"table {name!r} has rows 0 to {table.num_rows - 1} but is asked for rows {int(low)} to {int(high)}"
                )
        number = len(starts)
        if number == 1:
            return ids + starts
        if number & (number - 1) == 0:  # bit operations take a tenth of the time of divisions
            return starts[ids & (number - 1)] + (ids >> (number.bit_length() - 1))
        return starts[ids % number] + torch.div(ids, number, rounding_mode="floor")

    def counts(self, keys: np.ndarray) -> list[int]:
        """How many of these sorted keys belong to each position."""
        return [int(count) for count in np.diff(np.searchsorted(keys, self._ends))]

    def _starts_of(self, name: str) -> Iterator[int]:
        found = {
            piece.first: position * self.stride + piece.place.start
            for position, rank in enumerate(self.order)
            for piece in self.pieces[rank]
            if piece.table == name
        }
        return (found[first] for first in sorted(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class Lookup:
    """What a bag is called with: ids, and where each sample's begin."""

    ids: Tensor
    offsets: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Pooling:
    """The lookups of one pass in the rows of its step."""

    places: Tensor
    """Of each id of all tables, in the rows that were pulled."""
    offsets: Tensor
    """Of the bags of all tables, in `places`."""
    num_bags: tuple[int, ...]
    """Per table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The rows that a step needs, each once, sorted by the position of their server."""

    places: Tensor
    """Of each row, on its server."""
    num_rows: tuple[int, ...]
    """Per position."""
    order: Sequence[int]
    """The ranks by position."""
    passes: tuple[Pooling, ...] = ()

    def split(self, of_rows: Tensor) -> list[Tensor]:
        """What belongs to the rows of each rank."""
        found = [of_rows] * len(self.order)
        for rank, part in zip(self.order, of_rows.split(list(self.num_rows)), strict=True):
            found[rank] = part
        return found

    @property
    def counts(self) -> list[int]:
        """Rows per rank."""
        return [count for _, count in sorted(zip(self.order, self.num_rows, strict=True))]


def request(layout: Layout, passes: Sequence[Mapping[str, Lookup]]) -> Request:
    """The rows that the passes of a step look up, each once."""
    keys = [layout.keys(name, one[name].ids) for one in passes for name in layout.tables]
    joined = torch.cat(keys).numpy() if keys else np.zeros(0, dtype=np.int64)
    unique, inverse = np.unique(joined, return_inverse=True)
    rows = torch.from_numpy(inverse.reshape(-1))
    parts = rows.split([sum(len(one[name].ids) for name in layout.tables) for one in passes])
    return Request(
        places=torch.from_numpy((unique % layout.stride).astype(np.int32)),
        num_rows=tuple(layout.counts(unique)),
        order=layout.order,
        passes=tuple(_pooling(layout, one, part) for one, part in zip(passes, parts, strict=True)),
    )


def _pooling(layout: Layout, lookups: Mapping[str, Lookup], places: Tensor) -> Pooling:
    own = [lookups[name] for name in layout.tables]
    begins = accumulate((len(one.ids) for one in own), initial=0)
    offsets = [one.offsets + begin for one, begin in zip(own, begins, strict=False)]
    return Pooling(places=places, offsets=torch.cat(offsets), num_bags=tuple(len(one.offsets) for one in own))
