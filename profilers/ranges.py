"""Ranges of a trainer in a torch profile: phases and messages, with their bytes.

torch.profiler records only the name, start and end of a range, so the bytes are part of the name:
"autotune::post all-reduce 3 [1048576 B]". Without a profiler, a range is one shared context that does nothing, since
record_function would cost microseconds then too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor
from torch.profiler import record_function

from autotune.profilers.timeline import all_reduce_name

PHASES = ("data", "forward", "backward", "wait", "optimizer")
"""The phases of a step in order; also the kinds of the spans that the trainer measures."""
_PREFIX = "autotune::"
_NAME = re.compile(re.escape(_PREFIX) + r"(?P<op>.+?)(?: \[(?P<num_bytes>[0-9]+) B\])?")
_NOTHING: AbstractContextManager[None] = nullcontext()


class Ranges:
    """The ranges of one trainer; entered only while `recorded`."""

    def __init__(self) -> None:
        self._recording = False

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """While this context lasts, a profiler records."""
        self._recording = True
        try:
            yield
        finally:
            self._recording = False

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """One of PHASES."""
        return record_function(range_name(name)) if self._recording else _NOTHING

    def bucket(self, what: str, index: int, tensor: Tensor) -> AbstractContextManager[Any]:
        """An action on the bucket that is posted as number `index` of its step, with its current bytes."""
        if not self._recording:
            return _NOTHING
        return record_function(range_name(f"{what} {all_reduce_name(index)}", tensor.nbytes))


def range_name(op: str, num_bytes: int | None = None) -> str:
    """The name of a range in a profile."""
    return f"{_PREFIX}{op}" if num_bytes is None else f"{_PREFIX}{op} [{num_bytes} B]"


def read_range(name: str) -> tuple[str, int] | None:
    """The op and the bytes (0 if absent) of a range of a trainer; None for any other range."""
    found = _NAME.fullmatch(name)
    return (found["op"], int(found["num_bytes"] or 0)) if found else None
