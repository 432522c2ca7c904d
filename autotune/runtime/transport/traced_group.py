"""A process group that notes when each of its collectives was posted and when it was done, while it is asked to.

It hands everything through: what waits for a collective waits for the real one. Emulated links note the same as they
deliver, so a step is traced alike on both.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from autotune.runtime.transport.wrapped_group import WrappedGroup

_NOTE_S, _POLL_S = 1.0, 0.0002


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """One collective as a rank saw it, on the monotonic clock."""

    num_bytes: int
    posted_s: float
    """When this rank joined."""
    end_s: float
    late_s: float = 0.0
    """Emulated links: how much later the real collective was done."""
    ready_s: float | None = None
    """When this rank had what is sent, where that is known."""
    name: str = ""
    """The same on every rank; empty: by its place in the order of posting."""


class TracedGroup(WrappedGroup):
    """`inner`, with a record of the collectives that were posted while `recording`."""

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner)
        self.recording = False
        self._deliveries: list[Delivery] = []
        self._under_way = 0
        self._lock = threading.Lock()

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        assert self._inner is not None
        listed = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
        posted_s = time.monotonic()
        work = self._inner.allreduce(listed, opts if opts is not None else dist.AllreduceOptions())
        if self.recording:
            with self._lock:
                self._under_way += 1
            num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in listed)
            work.get_future().then(lambda _: self._note(num_bytes, posted_s))
        return work

    def take(self) -> list[Delivery]:
        """What was recorded since the last call. A waiter may wake just before its collective is noted: wait for that."""
        deadline = time.monotonic() + _NOTE_S
        while self._under_way and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        with self._lock:
            taken, self._deliveries = self._deliveries, []
        return sorted(taken, key=lambda delivery: delivery.posted_s)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "traced"

    def close(self) -> None:
        """Let go of the real group, which tells its peers."""
        self._inner = None

    def _note(self, num_bytes: int, posted_s: float) -> None:
        delivery = Delivery(num_bytes=num_bytes, posted_s=posted_s, end_s=time.monotonic())
        with self._lock:
            self._deliveries.append(delivery)
            self._under_way -= 1


def taken(group: Any) -> list[Delivery]:
    """The collectives that a group has noted since it was last asked; none where it notes nothing."""
    return list(group.take()) if hasattr(group, "take") else []
