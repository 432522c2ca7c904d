"""Ranges of our own in a torch profile: what a trainer is at, and with how many bytes.

torch.profiler keeps a range's name and its two moments and nothing else, so the bytes are part of the name:
"autotune::post all-reduce 3 [1048576 B]". While nobody profiles, a range is one shared context that does nothing:
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
"""What a step goes through, one after the other; also the kinds of the spans that the trainer's own clock gives."""
_PREFIX = "autotune::"
_NAME = re.compile(re.escape(_PREFIX) + r"(?P<op>.+?)(?: \[(?P<num_bytes>[0-9]+) B\])?")
_NOTHING: AbstractContextManager[None] = nullcontext()


class Ranges:
    """The ranges of one trainer; entered only while `recorded`."""

    def __init__(self) -> None:
        self._recording = False

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """A profiler is listening as long as this context lasts."""
        self._recording = True
        try:
            yield
        finally:
            self._recording = False

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """One of PHASES."""
        return record_function(range_name(name)) if self._recording else _NOTHING

    def bucket(self, what: str, index: int, tensor: Tensor) -> AbstractContextManager[Any]:
        """What is done with the bucket that is posted as number `index` of its step, in the form it then has."""
        if not self._recording:
            return _NOTHING
        return record_function(range_name(f"{what} {all_reduce_name(index)}", tensor.nbytes))


def range_name(op: str, num_bytes: int | None = None) -> str:
    """What a range is called in a profile."""
    return f"{_PREFIX}{op}" if num_bytes is None else f"{_PREFIX}{op} [{num_bytes} B]"


def read_range(name: str) -> tuple[str, int] | None:
    """The op and the bytes (0 where none are told) of a range of ours; None if it is somebody else's."""
    found = _NAME.fullmatch(name)
    return (found["op"], int(found["num_bytes"] or 0)) if found else None
