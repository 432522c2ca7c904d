"""A process group that records when each of its collectives was posted and completed, while `recording`.

It passes everything on: a waiter waits for the real collective. Emulated links record the same as they deliver, so real and
emulated steps have the same kind of trace.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from autotune.runtime.transport.wrapped_group import WrappedGroup

_RECORD_S, _POLL_S = 1.0, 0.0002


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """One collective on one rank; time stamps are of the monotonic clock."""

    num_bytes: int
    posted_s: float
    """When this rank posted it."""
    end_s: float
    late_s: float = 0.0
    """Emulated links: how much later the real collective completed."""
    ready_s: float | None = None
    """When the data of this rank was ready, where recorded."""
    name: str = ""
    """The same on every rank; empty: named by the order of posting."""


class TracedGroup(WrappedGroup):
    """`inner`, with a record of the collectives that were posted while `recording`.

    One thread at a time posts. The thread that trains sets `recording` and calls `take` and `close`. Completions are recorded
    on the threads of the real group; the lock guards the deliveries and the count of collectives in flight.
    """

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner)
        self.recording = False
        self._deliveries: list[Delivery] = []
        self._in_flight = 0
        self._lock = threading.Lock()

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        assert self._inner is not None
        listed = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
        posted_s = time.monotonic()
        work = self._inner.allreduce(listed, opts if opts is not None else dist.AllreduceOptions())
        if self.recording:
            with self._lock:
                self._in_flight += 1
            num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in listed)
            work.get_future().then(lambda _: self._record(num_bytes, posted_s))
        return work

    def take(self) -> list[Delivery]:
        """The deliveries since the last call. Waits for pending records: a waiter may wake just before its record is made."""
        deadline = time.monotonic() + _RECORD_S
        while self._in_flight and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        with self._lock:
            taken, self._deliveries = self._deliveries, []
        return sorted(taken, key=lambda delivery: delivery.posted_s)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "traced"

    def close(self) -> None:
        """Release the real group, which informs its peers."""
        self._inner = None

    def _record(self, num_bytes: int, posted_s: float) -> None:
        delivery = Delivery(num_bytes=num_bytes, posted_s=posted_s, end_s=time.monotonic())
        with self._lock:
            self._deliveries.append(delivery)
            self._in_flight -= 1


def set_recording(group: Any, *, on: bool) -> None:
    """Record the collectives of a group from here on, or stop; nothing happens where it cannot."""
    if hasattr(group, "recording"):
        group.recording = on


def taken(group: Any) -> list[Delivery]:
    """The deliveries of a group since the last call; none where it records nothing."""
    return list(group.take()) if hasattr(group, "take") else []
