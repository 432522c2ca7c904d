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
from collections.abc import Callable, Mapping
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
    result = _converter(typing.cast("Any", kind))(data, (where,))
    return typing.cast("T", result)


def digest(value: Any) -> str:
    """A short fingerprint of any value `to_data` can take: equal content, equal digest, on every machine."""
    text = json.dumps(to_data(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


Where = tuple[Any, ...]
"""Where a value stands: the source; or what holds it, and its index or key. A text only in errors, as most values have none."""
Converter = Callable[[Any, Where], Any]


@functools.cache
def _converter(kind: Any) -> Converter:  # noqa: PLR0911 - one return per kind of type
    """From JSON data to a value of this kind. Made once per kind: a large study has millions of values."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda data, _: data
    if origin in (Union, types.UnionType):
        return _optional(next(option for option in arguments if option is not type(None)), type(None) in arguments)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if origin is tuple:
        return _tuple(arguments[0])
    if origin is dict:
        return _dict(*arguments)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum(kind)
    if kind is float:
        return _float
    return _plain(kind)


def _optional(kind: Any, may_be_none: bool) -> Converter:
    def convert(data: Any, where: Where) -> Any:
        return None if data is None and may_be_none else _converter(kind)(data, where)

    return convert


def _tuple(kind: Any) -> Converter:
    item_of = _converter(kind)

    def convert(data: Any, where: Where) -> Any:
        if not isinstance(data, list):
            raise _wrong("a list", data, where)
        return tuple([item_of(item, (where, index)) for index, item in enumerate(data)])

    return convert


def _dict(key_kind: Any, kind: Any) -> Converter:
    item_of = _converter(kind)

    def convert(data: Any, where: Where) -> Any:
        if not isinstance(data, dict):
            raise _wrong("a table", data, where)
        return {_key(key_kind, key, where): item_of(item, (where, key)) for key, item in data.items()}

    return convert


def _key(kind: Any, key: str, where: Where) -> Any:
    """JSON keys are strings; those of a dataclass may be integers."""
    if kind is not int:
        return visible(key)
    if not key.isdigit():
        raise SpecError(f"{_text(where)}, key is {shown(key)}: it must be a whole number")
    return int(key)


def _enum(kind: type[enum.Enum]) -> Converter:
    values = {member.value: member for member in kind}

    def convert(data: Any, where: Where) -> Any:
        if not isinstance(data, str) or data not in values:
            raise _wrong("one of " + ", ".join(map(repr, values)), data, where)
        return values[data]

    return convert


def _float(data: Any, where: Where) -> float:
    if type(data) is not float and type(data) is not int:
        raise _wrong("a number", data, where)
    return float(data)


def _plain(kind: Any) -> Converter:
    def convert(data: Any, where: Where) -> Any:
        if type(data) is not kind:
            raise _wrong(f"of type {kind.__name__}", data, where)
        return visible(data) if is_text else data

    is_text = kind is str
    return convert


def _dataclass(kind: Any) -> Converter:
    hints = typing.get_type_hints(kind)
    fields = {_stored(field): field for field in dataclasses.fields(kind)}
    missing = dataclasses.MISSING
    required = [name for name, field in fields.items() if field.default is missing and field.default_factory is missing]
    parts: dict[str, tuple[str, Converter]] = {}  # filled below: a class may hold itself

    def convert(data: Any, where: Where) -> Any:
        if not isinstance(data, dict):
            raise _wrong("a table", data, where)
        if not parts:
            parts.update({name: (field.name, _converter(hints[field.name])) for name, field in fields.items()})
        for key in data:
            if key not in parts:
                raise unknown_name(f"key in {_text(where)}:", key, fields)
        for name in required:
            if name not in data:
                raise SpecError(f"{_text(where)} lacks {name!r}: add it")
        given = {}
        for key, value in data.items():
            name, value_of = parts[key]
            given[name] = value_of(value, (where, key))
        return kind(**given)

    return convert


def _wrong(rule: str, data: Any, where: Where) -> SpecError:
    return SpecError(f"{_text(where)} is {shown(data)}: it must be {rule}")


def _text(where: Where) -> str:
    if len(where) == 1:
        return str(where[0])
    holder, place = where
    return f"{_text(holder)}[{place}]" if isinstance(place, int) else f"{_text(holder)}.{visible(str(place))}"


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
