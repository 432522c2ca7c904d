"""What the event loop runs: a graph of tasks, and the resources that they run on, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TRANSFER, JOIN = -1, -2
"""In place of a device: a transfer, or a join of dependencies that takes no time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tasks:
    """A graph of tasks. The successors of task i are `next_tasks[next_from[i]:next_from[i + 1]]`."""

    device: Ints
    seconds: Floats
    """Of a transfer: seconds before its first byte, during which it holds its slot."""
    priority: Ints
    num_before: Ints
    next_from: Ints
    next_tasks: Ints
    queue: Ints
    """Of a transfer."""
    credit_bytes: Floats
    """Bytes that a transfer takes from the credit of its queue."""
    latency_s: Floats
    load_from: Ints
    load_link: Ints
    """-1: the next phase of the transfer begins."""
    load_bytes: Floats
    memory_device: Ints
    """The device whose memory a task changes; -1: none."""
    memory_at_start: Floats
    memory_at_end: Floats

    @property
    def num_tasks(self) -> int:
        return len(self.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """The resources that tasks run on: devices, links, queues."""

    num_devices: int
    link_bytes_per_s: Floats
    queue_slots: Ints
    queue_credit_bytes: Floats
    serialized: bool = True
    """Links serve one transfer after another; otherwise they share their bandwidth."""
