"""A rank that neither ends nor answers ends the job too: every rank limits the time of its own work between messages.

The others cannot tell a rank that hangs from one that works for long; the rank itself can, and says where its main thread
stands. Each rank limits itself, so rank 0 needs no other rank to watch it. Work holds no connection open and blocks no
thread but its own, so the rank's network tells the others (`Network.farewell`), whose watchers end the job.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from autotune.runtime.control.network import FAILED

if TYPE_CHECKING:
    from autotune.runtime.control.mpi import Control

SET_UP_VARIABLE = "AUTOTUNE_SETUP_LIMIT"
_SET_UP_S = 1800.0
_OTHERS_S = 5.0
"""How long the others have to end the job, before this rank does so itself."""


def set_up_limit_s() -> float:
    """How long one rank may take for a step of the set-up: to read its data, to build its model."""
    try:
        return float(os.environ[SET_UP_VARIABLE])
    except (KeyError, ValueError):
        return _SET_UP_S


@contextmanager
def time_limit(control: Control, limit_s: float, what: str, remedy: str) -> Iterator[None]:
    """End the job if the main thread, which calls this, has not left the context in time.

    `what`: this rank does, for the message. `remedy`: what to do if the rank does not hang but is slow.
    """
    timer = threading.Timer(limit_s, _expire, (control, f"{what} for {limit_s:g} s", remedy, threading.get_ident()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _expire(control: Control, what: str, remedy: str, thread: int) -> None:
    where = _place(sys._current_frames().get(thread))  # noqa: SLF001 - the standard library has no other way
    why = f"rank {control.rank} has been {what} and stands in {where}: does it hang? {remedy}"
    if control.size > 1:
        control.network().farewell(FAILED, why)
        threading.Event().wait(_OTHERS_S)
    sys.stderr.write(f"autotune: error: {why}\n")
    sys.stderr.flush()
    control.abort(1)


def _place(frame: FrameType | None) -> str:
    """Where a thread stands: its innermost frame."""
    if frame is None:
        return "no frame of Python"
    return f"{frame.f_code.co_name}() at {frame.f_code.co_filename}:{frame.f_lineno}"
