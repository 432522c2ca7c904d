"""Is anybody watching? Under mpirun every rank has a pty, so a stream's own isatty means nothing: mpirun's streams tell."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from autotune.runtime.control.mpi import launched_ranks

STDOUT, STDERR = 1, 2


def is_terminal(stream: int) -> bool:
    """Whether what we write to STDOUT or STDERR ends on a person's terminal."""
    if os.environ.get("CI") or os.environ.get("TERM") == "dumb":
        return False
    if launched_ranks() is None:
        return os.isatty(stream)
    return _launcher_terminal(stream) is not None


def terminal_width(stream: int) -> int | None:
    """Columns of that terminal, where it can be asked."""
    path = _launcher_terminal(stream) if launched_ranks() is not None else None
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
