"""The part of a plan that divides embedding tables over server ranks, which workers pull rows from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.workloads.errors import SpecError


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

    def owner_of(self, name: str) -> int | None:
        """The server that holds the whole table; None: all of them hold rows of it."""
        return next((table.server for table in self.tables if table.name == name), None)

    def used_servers(self, samples: Sequence[int]) -> tuple[int, ...]:
        """The ranks that hold rows."""
        return self.servers or tuple(rank for rank, count in enumerate(samples) if count)

    def part(self, place: Mapping[int, int]) -> EmbeddingPlan:
        """The same with other numbers for its ranks."""
        tables = tuple(replace(table, server=place[table.server]) for table in self.tables)
        return EmbeddingPlan(servers=tuple(place[rank] for rank in self.servers), tables=tables)

    def check(self, samples: Sequence[int]) -> None:
        """Refuse servers that are no ranks, and tables on ranks that are no servers."""
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
