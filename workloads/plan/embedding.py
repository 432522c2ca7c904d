"""The part of a plan that divides embedding tables over server ranks, which workers pull rows from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.workloads.errors import SpecError

_LEAST_LOOK_AHEAD = 3
"""What is decided for a step is announced a step before: with fewer steps, no next use of a row is known in time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TablePlacement:
    """A table that is on one server as a whole."""

    name: str
    """Of its module in the model."""
    server: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingPlan:
    """Every table of the model is on servers; the rest of the model is trained as the plan says otherwise."""

    servers: tuple[int, ...] = ()
    """Ranks that hold rows; empty: all ranks with samples."""
    tables: tuple[TablePlacement, ...] = ()
    """Tables on one server each; the rows of all others are dealt to the servers: row r to server r mod n."""

    cache_rows: int = 0
    """Rows that each worker may keep between the steps that need them; 0: none."""
    look_ahead: int = 32
    """With a cache: the steps whose lookups servers know."""

    def owner_of(self, name: str) -> int | None:
        """The server that holds the whole table; None: all of them hold rows of it."""
        return next((table.server for table in self.tables if table.name == name), None)

    def used_servers(self, samples: Sequence[int]) -> tuple[int, ...]:
        """The ranks that hold rows."""
        return self.servers or tuple(rank for rank, count in enumerate(samples) if count)

    def part(self, place: Mapping[int, int]) -> EmbeddingPlan:
        """The same with other numbers for its ranks."""
        tables = tuple(replace(table, server=place[table.server]) for table in self.tables)
        return replace(self, servers=tuple(place[rank] for rank in self.servers), tables=tables)

    def check(self, samples: Sequence[int]) -> None:
        """Refuse servers that are no ranks, tables on ranks that are no servers, and caches that cannot be."""
        if self.cache_rows < 0 or self.look_ahead < _LEAST_LOOK_AHEAD:
            raise SpecError(
                f"the plan has cache_rows {self.cache_rows} and look_ahead {self.look_ahead}: these must be at least 0 and "
                f"{_LEAST_LOOK_AHEAD}"
            )
        if len(set(self.servers)) < len(self.servers) or not set(self.servers) <= set(range(len(samples))):
            raise SpecError(
                f"the plan's embedding servers are {list(self.servers)}: name ranks from 0 to {len(samples) - 1}, each once"
            )
        servers, seen = self.used_servers(samples), set[str]()
        for table in self.tables:
            if table.server not in servers:
                raise SpecError(
                    f"table {table.name!r} is on rank {table.server} but the servers are {list(servers)}: name one of them"
                )
            if table.name in seen:
                raise SpecError(f"the plan places table {table.name!r} twice: name each table once")
            seen.add(table.name)
