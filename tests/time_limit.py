"""Runs a command with a time limit: `python -m tests.time_limit SECONDS COMMAND...`.

A test that blocks in C code is not reached by pytest-timeout, and pytest-xdist waits for a worker that has died as long as
one of its children holds its pipes. At the limit every process that the command has started gets SIGABRT, on which pytest
writes the stacks of all threads, and then SIGKILL. Nothing that was started outlives the command.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from contextlib import suppress

import psutil

EXIT_CODE = 124
"""As that of `timeout`."""
_GRACE_S, _POLL_S = 5.0, 0.05
_PR_SET_CHILD_SUBREAPER = 36


def main(limit_s: float, command: list[str]) -> int:
    """The exit code of the command, or 124 if it was ended at the limit."""
    _adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(EXIT_CODE))
    pid = os.spawnvp(os.P_NOWAIT, command[0], command)
    try:
        return _limited(pid, command[0], limit_s)
    except KeyboardInterrupt:  # which the command has got as well
        _wait(pid, time.monotonic() + _GRACE_S)
        return 128 + signal.SIGINT
    finally:
        _end_all()


def _limited(pid: int, name: str, limit_s: float) -> int:
    code = _wait(pid, time.monotonic() + limit_s)
    if code is not None:
        return code
    sys.stderr.write(f"\n{name} did not end within {limit_s:g} s: the stacks of its processes follow\n")
    sys.stderr.flush()
    _signal_all(signal.SIGABRT)
    _wait(pid, time.monotonic() + _GRACE_S)
    return EXIT_CODE


def _wait(pid: int, end_s: float) -> int | None:
    """The exit code of that child; None if it is still running at the end. Reaps the orphans it has left, too."""
    while time.monotonic() < end_s:
        found, status = os.waitpid(-1, os.WNOHANG)
        if found == pid:
            return os.waitstatus_to_exitcode(status)
        if not found:
            time.sleep(_POLL_S)
    return None


def _end_all() -> None:
    """Kills what is left, until nothing is."""
    end_s = time.monotonic() + _GRACE_S
    with suppress(ChildProcessError):  # no child is left
        while time.monotonic() < end_s:
            _signal_all(signal.SIGKILL)
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(_POLL_S)


def _adopt_orphans() -> None:
    """Makes processes whose parent has died our children (Linux), so that none is lost from sight."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _signal_all(number: signal.Signals) -> None:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
