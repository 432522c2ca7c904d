"""TOML files: shipped ones by name, the user's by path."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from autotune.workloads.errors import SpecError, unknown_key, unknown_name


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
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"cannot read {what} file {spec!r}: {error.strerror}: name a file that can be read") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{what} file {spec!r} is not valid TOML: {error}") from error


def known_keys(table: object, known: tuple[str, ...], where: str) -> None:
    """Refuse a value that is no table, and unknown keys."""
    if not isinstance(table, dict):
        raise SpecError(f"{where} is {table!r}: it must be a table")
    for key in table:
        if key not in known:
            raise unknown_key(where, key, known)
