"""Which stream touched a block of memory last, and whether the next one waits for it.

As torch.cuda._sanitizer: an operation that reads what another stream writes, or writes what another stream reads or
writes, must come after it by an event, a stream's wait or a synchronisation of the host. A block that is freed goes back
to the stream that allocated it: uses on other streams must come before that stream's next operation, unless
`record_stream` has named them.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from tests.accelerator import timeline
from tests.accelerator.counts import thread_name
from tests.accelerator.devices import Device
from tests.accelerator.timeline import Key, Line

_enabled = os.environ.get("FGPU_RACES", "1") != "0"


Span = tuple[int, int]
"""The first byte of a part of a storage, and the one after its last."""


class RaceError(RuntimeError):
    """Two streams use the same memory in no order."""


def enable(on: bool) -> None:
    global _enabled  # noqa: PLW0603 - the process has one switch
    _enabled = on


def enabled() -> bool:
    return _enabled


@dataclass(frozen=True, slots=True)
class Use:
    """An operation that touched a block."""

    key: Key
    number: int
    op: str
    is_engines: bool = False
    """Whether autograd's thread ran it: its engine keeps gradients for the streams that use them."""

    def before(self, line: Line) -> bool:
        return line.clock.get(self.key, 0) >= self.number or line.key == self.key

    def __str__(self) -> str:
        return f"{self.op} on stream {self.key[1]} of fgpu:{self.key[0]}"


freed: dict[Key, deque[list[Use]]] = {}
"""Uses of freed blocks by the stream that gets the memory again."""


class Block:
    """Memory of one storage; freed with the last tensor that holds it."""

    def __init__(self, device: Device | None, size: int, line: Line | None) -> None:
        self._device, self._size = device, 0
        self.owner = line.key if line else None
        self.uses: list[tuple[Span, Use, bool]] = []
        """What was used last of each part, by which operation, and whether it wrote."""
        self.recorded: set[Key] = set()
        self.deliveries: list[timeline.Delivery] = []
        if device:
            device.allocate(size)
            self._size = size

    def __del__(self) -> None:
        if self._device is None or self.owner is None or not self._size:
            return
        self._device.freed.append(self._size)
        uses = [use for _, use, _ in self.uses]
        foreign = [use for use in uses if use.key != self.owner and not self._is_kept_for(use) and not use.is_engines]
        if foreign and _enabled:
            freed.setdefault(self.owner, deque()).append(foreign)

    def _is_kept_for(self, use: Use) -> bool:
        """Whether a stream that `record_stream` has named is the use's, or comes after it by now."""
        return use.key in self.recorded or any(
            timeline.clock_of(key).get(use.key, 0) >= use.number for key in self.recorded
        )

    def touch(self, line: Line, op: str, span: Span, *, write: bool) -> None:
        """Record a use by the operation just launched on a stream; raises if it is in no order with the uses before."""
        use = Use(line.key, line.clock[line.key], op, is_engines=thread_name() == "autograd")
        if _enabled:
            for other_span, other, wrote in self.uses:
                if (write or wrote) and _overlap(span, other_span) and not other.before(line):
                    verb, done = ("writes" if is_write else "reads" for is_write in (write, wrote))
                    raise RaceError(
                        f"{use} {verb} the memory that {other} {done}, and does not wait for it: record an event after "
                        "the first and wait for it before the second"
                    )
        kept = [one for one in self.uses if not _replaces((span, use, write), one)]
        self.uses = [*kept, (span, use, write)]


def _overlap(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _replaces(later: tuple[Span, Use, bool], earlier: tuple[Span, Use, bool]) -> bool:
    """Whether what must come after the earlier use follows from the later one."""
    (span, use, write), (before, other, wrote) = later, earlier
    covers = span[0] <= before[0] and before[1] <= span[1]
    return covers and (write or (not wrote and other.key == use.key))


def check_freed(line: Line, op: str) -> None:
    """Memory that was freed is used again by this stream: other streams must be done with it."""
    waiting = freed.get(line.key)
    while waiting:
        for use in waiting.popleft():
            if _enabled and not use.before(line):
                raise RaceError(
                    f"the memory of {use} was freed and may be allocated again by {op} on {line}, which does not wait "
                    "for it: call record_stream, or keep the tensor until the stream has waited"
                )


def span_of(tensor: torch.Tensor) -> Span:
    """The part of its storage that a tensor reaches."""
    if not tensor.numel():
        return (0, 0)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first = tensor.storage_offset()
    return first * tensor.itemsize, (first + last + 1) * tensor.itemsize


def forget() -> None:
    """Forget freed memory: between tests."""
    freed.clear()


def touch_all(line: Line, op: str, blocks: list[tuple[Any, Span, bool]]) -> None:
    with timeline.LOCK:
        check_freed(line, op)
        for block, span, write in blocks:
            block.touch(line, op, span, write=write)
