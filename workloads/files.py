"""Files: read with bounds, of size, of the size of numbers and of what an error repeats; written in one step.

Plans, profiles and results folders may come from other users. A file that is too large, is no regular file, or holds a
number that is not finite is refused while it is read, before anything is computed from it. Callers see an OSError or a
ValueError, as from any other file that cannot be read, and state what the file should have been.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import reprlib
import secrets
import stat
import tomllib
from pathlib import Path
from typing import Any, NoReturn

MAX_BYTES = 256 * 2**20
"""Of a file of results or costs. A trace of a long run has some tens of MiB."""
MAX_TOML_BYTES = 4 * 2**20
"""Of a cluster, a scenario or a price list: the parser takes a second per MiB."""
_MOST_DIGITS = 19

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""C0 and C1, among them what begins an escape sequence, and marks that turn the direction of writing."""

PARTIAL = ".partial"
"""The end of the name of a file that is being written; one that is left was cut off by a kill."""
_LONGEST_NAME = 150
_PATH_NAME = re.compile(rf"(?![-.])[\w .,=@+~()\[\]-]{{1,{_LONGEST_NAME}}}")
PATH_NAME_RULE = (
    f"1 to {_LONGEST_NAME} letters, digits, spaces or any of _ . , = @ + ~ ( ) [ ] -, the first no dot and no -"
)
_NO_PATH = re.compile(r"[^\w .,=@+~()\[\]-]")

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 80, 80, 40
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 4


def read_text(path: Path | str, *, most_bytes: int = MAX_BYTES) -> str:
    """The text of a regular file. OSError where it cannot be read or is too large, ValueError where it is no UTF-8."""
    try:
        with Path(path).open("rb") as file:
            _check_regular(file.fileno(), most_bytes)
            content = file.read(most_bytes + 1)
    except ValueError as error:  # a null character in the name
        raise OSError(errno.EINVAL, str(error)) from error
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, _too_large(len(content), most_bytes))
    return content.decode("utf-8")


def json_of(text: str | bytes) -> Any:
    """JSON data with finite numbers only; ValueError or RecursionError for anything else."""
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole)


def toml_of(text: str) -> dict[str, Any]:
    """TOML data; ValueError (of which TOMLDecodeError is one) for anything else."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def shown(value: object) -> str:
    """A value as an error quotes it: without control characters, and short, whatever a file holds."""
    return _SHORT.repr(value)


def is_plain(text: str) -> bool:
    """Whether a terminal shows the text and does nothing else: no control characters but tabs and ends of lines."""
    return text.isprintable() or not _CONTROL.search(text)


def visible(text: str) -> str:
    """The same text with control characters written as escapes, such as \\x1b."""
    if text.isprintable():
        return text
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def is_path_name(name: str) -> bool:
    """Whether a name can be a file or a folder anywhere, an option nowhere, and shows what it is."""
    return _PATH_NAME.fullmatch(name) is not None


def safe_name(text: str) -> str:
    """A text as part of the name of a file: what a name cannot hold is replaced, and a long one ends in a digest."""
    name = _NO_PATH.sub("_", text.replace(":", ".")).lstrip("-.") or "_"
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 13]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file in one step: readers see the old content or the new, never half, also after a crash.

    The file gets the permissions that the umask leaves. OSError if it cannot be written; then nothing has changed.
    """
    partial = path.with_name(f".{path.name[:100]}.{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """What was created or renamed in a folder survives a power failure only once the folder itself is on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no such thing
            raise
    finally:
        os.close(descriptor)


def _check_regular(descriptor: int, most_bytes: int) -> None:
    """Devices and pipes may never end."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    if found.st_size > most_bytes:
        raise OSError(errno.EFBIG, _too_large(found.st_size, most_bytes))


def _too_large(num_bytes: int, most_bytes: int) -> str:
    return f"it has {num_bytes / 2**20:.4g} MiB or more, and at most {most_bytes / 2**20:.4g} MiB are read"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a finite number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:_MOST_DIGITS]} is too large for a number")
    return number


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS + 1:
        raise ValueError(f"a whole number of {len(text)} digits is too large")
    return int(text)
