"""Files as data, strictly: an unknown key or a wrong type is a SpecError that names it.

Frozen dataclasses to plain JSON data and back; TOML files, shipped ones by name and the user's by path.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, Union

from autotune.workloads.errors import SpecError, unknown_key, unknown_name
from autotune.workloads.files import MAX_TOML_BYTES, is_plain, read_text, shown, toml_of, visible

T = TypeVar("T")
_STORED = "stored name"


def stored_as(name: str) -> Mapping[str, str]:
    """Metadata of a dataclass field whose name in files differs from its name in the code: written files stay readable."""
    return {_STORED: name}


def _stored(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get(_STORED, field.name))


def to_data(value: Any) -> Any:
    """Dataclasses, enums and tuples as dicts, strings and lists: ready for json.dumps."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {_stored(field): to_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_data(item) for item in value]
    return value


def from_data(kind: type[T], data: Any, where: str) -> T:
    """Build a `kind` from JSON data. `where` names the source in errors: a file and the path within it."""
    result = _convert(kind, data, where)
    return typing.cast("T", result)


def digest(value: Any) -> str:
    """A short fingerprint of any value `to_data` can take: equal content, equal digest, on every machine."""
    text = json.dumps(to_data(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _convert(kind: Any, data: Any, where: str) -> Any:  # noqa: PLR0911 - one return per kind of type
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if origin in (Union, types.UnionType):
        if data is None and type(None) in arguments:
            return None
        return _convert(next(option for option in arguments if option is not type(None)), data, where)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, data, where)
    if origin is tuple:
        _expect(isinstance(data, list), "a list", data, where)
        return tuple(_convert(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(data))
    if origin is dict:
        _expect(isinstance(data, dict), "a table", data, where)
        return {
            _key(arguments[0], key, where): _convert(arguments[1], item, f"{where}.{visible(key)}")
            for key, item in data.items()
        }
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        values = {member.value: member for member in kind}
        _expect(isinstance(data, str) and data in values, "one of " + ", ".join(map(repr, values)), data, where)
        return values[data]
    if kind is float:
        _expect(isinstance(data, int | float) and not isinstance(data, bool), "a number", data, where)
        return float(data)
    _expect(type(data) is kind, f"of type {kind.__name__}", data, where)
    return visible(data) if kind is str else data


def _key(kind: Any, key: str, where: str) -> Any:
    """JSON keys are strings; those of a dataclass may be integers."""
    if kind is not int:
        return visible(key)
    _expect(key.isdigit(), "a whole number", key, f"{where}, key")
    return int(key)


def _dataclass(kind: Any, data: Any, where: str) -> Any:
    _expect(isinstance(data, dict), "a table", data, where)
    hints = _hints(kind)
    fields = {_stored(field): field for field in dataclasses.fields(kind)}
    for key in data:
        if key not in fields:
            raise unknown_name(f"key in {where}:", key, fields)
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in data:
            raise SpecError(f"{where} lacks {name!r}: add it")
    return kind(
        **{fields[key].name: _convert(hints[fields[key].name], value, f"{where}.{key}") for key, value in data.items()}
    )


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _expect(holds: bool, rule: str, data: Any, where: str) -> None:
    if not holds:
        raise SpecError(f"{where} is {shown(data)}: it must be {rule}")


def table_names(folder: Path) -> list[str]:
    """Names of the shipped files of a folder."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def load_table(spec: str, folder: Path, what: str, *, remedy: str) -> tuple[Path, dict[str, Any]]:
    """A shipped file by name or any file by path, and its content."""
    if spec.endswith(".toml"):
        path = Path(spec)
    elif spec in table_names(folder):
        path = folder / f"{spec}.toml"
    else:
        raise unknown_name(what, spec, table_names(folder), remedy)
    try:
        return path, plain_tables(toml_of(read_text(path, most_bytes=MAX_TOML_BYTES)))
    except OSError as error:
        raise SpecError(f"cannot read {what} file {spec!r}: {error.strerror}: name a file that can be read") from error
    except ValueError as error:
        raise SpecError(f"{what} file {spec!r} is not valid TOML: {error}") from error


def plain_tables(data: dict[str, Any]) -> dict[str, Any]:
    """The same tables; ValueError where a key or a text in them holds control characters, which a terminal would obey."""
    left: list[Any] = [data]
    while left:
        match left.pop():
            case dict() as table:
                left += [*table.keys(), *table.values()]
            case list() as entries:
                left += entries
            case str() as text if not is_plain(text):
                raise ValueError(f"{shown(text)} holds control characters")
    return data


def known_keys(table: object, known: tuple[str, ...], where: str) -> None:
    """Refuse a value that is no table, and unknown keys."""
    if not isinstance(table, dict):
        raise SpecError(f"{where} is {shown(table)}: it must be a table")
    for key in table:
        if key not in known:
            raise unknown_key(where, key, known)
