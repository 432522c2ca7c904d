"""A builder of tasks, one at a time: for schedules other than plain data parallelism, and for tests with closed forms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autotune.simulate.task_graph import JOIN, TRANSFER, Site, Tasks

Loads = Sequence[tuple[int, float]]
"""(link, bytes): what a transfer puts on which link."""
NO_LIMIT = 2**31
"""Slots of a queue that takes any number of transfers at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryChange:
    """Bytes that a task takes on a device when it starts, and gives back (below zero) when it ends."""

    device: int
    at_start: float = 0.0
    at_end: float = 0.0


NO_CHANGE = MemoryChange(device=-1)


@dataclass(kw_only=True, slots=True)
class TaskList:
    """Builds tasks. `compute`, `transfer` and `join` return the number of a task; later tasks name it in `after`."""

    device: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    num_bytes: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    memory: list[MemoryChange] = field(default_factory=list)
    loads: list[Loads] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)

    def compute(
        self,
        device: int,
        seconds: float,
        after: Iterable[int] = (),
        *,
        priority: int = 0,
        memory: MemoryChange = NO_CHANGE,
    ) -> int:
        """A task on a device."""
        return self._add(device, seconds, after, priority=priority, memory=memory)

    def transfer(  # noqa: PLR0913 - the parameters of a transfer
        self,
        loads: Loads,
        after: Iterable[int] = (),
        *,
        queue: int = 0,
        num_bytes: float = 0.0,
        fixed_s: float = 0.0,
        latency_s: float = 0.0,
        priority: int = 0,
    ) -> int:
        """A transfer over links. `num_bytes`: what it takes from the queue's credit."""
        number = self._add(TRANSFER, fixed_s, after, priority=priority, memory=NO_CHANGE)
        self.queue[number], self.num_bytes[number] = queue, num_bytes
        self.latency_s[number], self.loads[number] = latency_s, loads
        return number

    def join(self, after: Iterable[int], seconds: float = 0.0) -> int:
        """A join of these tasks, so that each successor needs one edge only; it may take time, but no resource."""
        return self._add(JOIN, seconds, after, priority=0, memory=NO_CHANGE)

    def _add(self, device: int, seconds: float, after: Iterable[int], *, priority: int, memory: MemoryChange) -> int:
        number = len(self.device)
        self.device.append(device)
        self.seconds.append(seconds)
        self.priority.append(priority)
        self.queue.append(0)
        self.num_bytes.append(0.0)
        self.latency_s.append(0.0)
        self.memory.append(memory)
        self.loads.append(())
        self.edges.extend((before, number) for before in after)
        return number

    def wait(self, task: int, *, after: int) -> None:
        """Add a dependency of `task`."""
        self.edges.append((after, task))

    def tasks(self) -> Tasks:
        """As arrays."""
        num_tasks = len(self.device)
        edges = np.array(self.edges, np.int64).reshape(-1, 2)
        order = np.argsort(edges[:, 0], kind="stable")
        loads = [load for listed in self.loads for load in listed]
        return Tasks(
            device=np.array(self.device, np.int64),
            seconds=np.array(self.seconds, np.float64),
            priority=np.array(self.priority, np.int64),
            num_before=np.bincount(edges[:, 1], minlength=num_tasks).astype(np.int64),
            next_from=starts(np.bincount(edges[:, 0], minlength=num_tasks)),
            next_tasks=edges[order, 1],
            queue=np.array(self.queue, np.int64),
            credit_bytes=np.array(self.num_bytes, np.float64),
            latency_s=np.array(self.latency_s, np.float64),
            load_from=starts(np.array([len(listed) for listed in self.loads], np.int64)),
            load_link=np.array([link for link, _ in loads], np.int64),
            load_bytes=np.array([num_bytes for _, num_bytes in loads], np.float64),
            memory_device=np.array([change.device for change in self.memory], np.int64),
            memory_at_start=np.array([change.at_start for change in self.memory], np.float64),
            memory_at_end=np.array([change.at_end for change in self.memory], np.float64),
        )


def starts(counts: np.ndarray) -> np.ndarray:
    """Offsets of each list in their concatenation, and its length."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int64)


def make_site(
    num_devices: int,
    link_bytes_per_s: Sequence[float] = (),
    *,
    slots: Sequence[int] = (NO_LIMIT,),
    credit_bytes: Sequence[float] = (float("inf"),),
    serialized: bool = True,
) -> Site:
    """A site from plain lists; by default one queue that takes everything at once."""
    return Site(
        num_devices=num_devices,
        link_bytes_per_s=np.array(link_bytes_per_s, np.float64),
        queue_slots=np.array(slots, np.int64),
        queue_credit_bytes=np.array(credit_bytes, np.float64),
        serialized=serialized,
    )
