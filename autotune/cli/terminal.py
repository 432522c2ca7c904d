"""Does a stream end on a terminal? Under mpirun every rank has a pty: mpirun's own streams decide, not isatty."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from autotune.runtime.launch.launcher import is_launched

STDOUT, STDERR = 1, 2


def console(stream: int = STDOUT, *, quiet: bool = False) -> Any:
    """A rich console on STDOUT or STDERR."""
    from autotune.results.show.report_console import make_console  # noqa: PLC0415 - rich is not needed for JSON

    file = sys.stdout if stream == STDOUT else sys.stderr
    return make_console(stream=file, terminal=is_terminal(stream), width=terminal_width(stream), quiet=quiet)


def is_terminal(stream: int) -> bool:
    """Whether STDOUT or STDERR ends on a user's terminal."""
    if os.environ.get("CI") or os.environ.get("TERM") == "dumb":
        return False
    if not is_launched(os.environ):
        return os.isatty(stream)
    return _launcher_terminal(stream) is not None


def terminal_width(stream: int) -> int | None:
    """Columns of that terminal, where they can be read."""
    path = _launcher_terminal(stream) if is_launched(os.environ) else None
    try:
        if path is None:
            return os.get_terminal_size(stream).columns if os.isatty(stream) else None
        fd = os.open(path, os.O_RDONLY | os.O_NOCTTY)
        try:
            return os.get_terminal_size(fd).columns or None
        finally:
            os.close(fd)
    except OSError:
        return None


def _launcher_terminal(stream: int) -> str | None:
    if sys.platform != "linux":
        return None
    try:
        target = str(Path(f"/proc/{os.getppid()}/fd/{stream}").readlink())
    except OSError:
        return None
    return target if target.startswith(("/dev/pts/", "/dev/tty")) else None
