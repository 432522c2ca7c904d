"""Rows of numbers from CSV or JSON files of other tools, with errors that name the row and the column.

Column names are matched without case; each may have several names and, of times and sizes, the unit as a suffix:
`forward_ms`, `memory_mb`. Sizes of files and numbers of rows are limited, so that a wrong file is refused at once.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.workloads.errors import SpecError
from autotune.workloads.files import json_of, read_text, shown

MOST_BYTES = 64 << 20
MOST_ROWS = 200_000
TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
SIZES = {"bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column as files may name it."""

    names: tuple[str, ...]
    """The first is ours."""
    units: tuple[tuple[str, float], ...] = ()
    """Suffixes and their factors; empty: the number as it is."""
    default_unit: str = ""
    """Of a name without a suffix; empty: the file must state it."""

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row: `where` names it in errors."""

    where: str
    values: Mapping[str, Any]

    def has(self, column: Column) -> bool:
        return self._find(column) is not None

    def text(self, column: Column) -> str:
        found = self._find(column)
        if found is None:
            raise SpecError(
                f"{self.where} has no {column.name!r}: add a column of that name ({', '.join(column.names)})"
            )
        return str(found[1]).strip()

    def number(self, column: Column) -> float:
        """In SI units; finite and not negative."""
        found = self._find(column)
        if found is None:
            raise SpecError(
                f"{self.where} has no {column.name!r}: add a column of that name ({', '.join(column.names)})"
            )
        key, value, factor = found
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise SpecError(f"{self.where}, column {key!r}: {shown(value)} is no number") from error
        if isinstance(value, bool) or not math.isfinite(number) or number < 0:
            raise SpecError(
                f"{self.where}, column {key!r}: {shown(value)} must be a finite number that is not negative"
            )
        return number * factor

    def count(self, column: Column, *, default: int | None = None) -> int:
        """A whole number from 1."""
        if default is not None and not self.has(column):
            return default
        number = self.number(column)
        if number != int(number) or number < 1:
            raise SpecError(f"{self.where}, column {column.name!r}: {number:g} must be a whole number from 1")
        return int(number)

    def _find(self, column: Column) -> tuple[str, Any, float] | None:
        """The key in the file, its value and the factor of its unit; empty cells count as absent."""
        for name in column.names:
            for suffix, factor in (("", None), *column.units):
                key = f"{name}_{suffix}" if suffix else name
                value = self.values.get(key)
                if value is None or value == "":
                    continue
                return key, value, factor if factor is not None else self._default_factor(column, key)
        return None

    def _default_factor(self, column: Column, key: str) -> float:
        if not column.units:
            return 1.0
        if not column.default_unit:
            options = ", ".join(f"{key}_{unit}" for unit, _ in column.units)
            raise SpecError(f"{self.where}, column {key!r} states no unit: name it {options}, or give --time-unit")
        return dict(column.units)[column.default_unit]


def read_rows(path: Path, keys: Sequence[str] = ()) -> list[Row]:
    """Rows of a CSV file, or of a JSON file: a list of tables, or tables within tables whose keys are the columns `keys`."""
    rows = list(_json_rows(path, keys) if path.suffix == ".json" else _csv_rows(path, read_source(path)))
    if not rows:
        raise SpecError(f"{str(path)!r} has no rows: there must be at least one below the names of the columns")
    return rows


def read_source(path: Path) -> str:
    """The text of a file of acceptable size, without the mark that some programs begin it with."""
    try:
        return read_text(path, most_bytes=MOST_BYTES).removeprefix("\ufeff")
    except OSError as error:
        raise SpecError(f"cannot read {str(path)!r}: {error.strerror}: name a file that can be read") from error
    except ValueError as error:
        raise SpecError(f"{str(path)!r} is not text ({error})") from error


def read_json(path: Path) -> Any:
    text = read_source(path)
    try:
        return json_of(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{str(path)!r} is no JSON ({error})") from error


def _csv_rows(path: Path, text: str) -> Iterator[Row]:
    first = text.partition("\n")[0]
    separator = next((mark for mark in (",", ";", "\t") if mark in first), ",")
    reader = csv.reader(io.StringIO(text), delimiter=separator)
    try:
        names = [name.strip().lower() for name in next(reader, [])]
        _check_names(path, names)
        for number, cells in enumerate(reader, start=2):
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(names):
                raise SpecError(f"{str(path)!r} row {number} has {len(cells)} cells but there are {len(names)} columns")
            yield _row(path, number, dict(zip(names, (cell.strip() for cell in cells), strict=True)))
    except csv.Error as error:
        raise SpecError(f"{str(path)!r} is no CSV: {error}") from error


def _check_names(path: Path, names: Sequence[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or not any(names):
        what = f"names column {twice!r} twice" if twice is not None else "names no columns"
        raise SpecError(f"{str(path)!r} row 1 {what}: it must name each column once")


def _row(path: Path, number: int, values: Mapping[str, Any]) -> Row:
    if number > MOST_ROWS:
        raise SpecError(f"{str(path)!r} has more than {MOST_ROWS} rows: split the file")
    return Row(where=f"{str(path)!r} row {number}", values=values)


def _json_rows(path: Path, keys: Sequence[str]) -> Iterator[Row]:
    data = read_json(path)
    if isinstance(data, dict) and not keys:
        data = next((data[key] for key in ("rows", "layers", "data") if isinstance(data.get(key), list)), data)
    found = _nested(path, data, tuple(keys), {}) if keys else data
    if isinstance(found, dict):
        raise SpecError(
            f"{str(path)!r} has tables within tables: say which columns their keys are, outermost first, such as "
            "--keys tp,mbs,layer"
        )
    if not keys and not isinstance(found, list):
        raise SpecError(f"{str(path)!r} must be a list of tables, one for each row")
    for number, values in enumerate(found, start=1):
        if not isinstance(values, dict):
            raise SpecError(f"{str(path)!r} row {number} is {shown(values)}: it must be a table of columns")
        yield _row(path, number, {str(key).strip().lower(): value for key, value in values.items()})


def _nested(path: Path, data: Any, keys: tuple[str, ...], known: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of tables within tables; a list counts its entries from 0."""
    if not keys:
        yield known | data if isinstance(data, dict) else data
        return
    if not isinstance(data, dict | list):
        place = ", ".join(f"{key} {value}" for key, value in known.items()) or "the file"
        raise SpecError(f"{str(path)!r}: {place} is {shown(data)}: it must be a table by {keys[0]!r}")
    entries = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in entries:
        yield from _nested(path, value, keys[1:], known | {keys[0].lower(): key})
