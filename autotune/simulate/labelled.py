"""A builder of labelled tasks, one at a time: pipelines and parameter servers are expanded with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autotune.simulate.layout import BARRIER, SEND, Labels
from autotune.simulate.task_graph import Tasks
from autotune.simulate.tasks import NO_CHANGE, MemoryChange, TaskList


@dataclass(kw_only=True, slots=True)
class LabelledTasks:
    """Builds one step. The tasks of a rank run in the order in which they are added."""

    tasks: TaskList = field(default_factory=TaskList)
    labels: list[tuple[int, int, int]] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)
    """The last task of each rank so far."""

    def work(  # noqa: PLR0913, PLR0917 - kind, place, duration, dependencies
        self,
        kind: int,
        rank: int,
        index: int,
        seconds: float,
        after: Iterable[int] = (),
        memory: MemoryChange = NO_CHANGE,
    ) -> int:
        """A task on a rank's device, after the rank's previous task."""
        before = [self.last[rank]] if rank in self.last else []
        self.last[rank] = self.tasks.compute(rank, seconds, [*before, *after], memory=memory)
        self.labels.append((kind, rank, index))
        return self.last[rank]

    def send(  # noqa: PLR0913 - the parameters of a transfer
        self,
        index: int,
        loads: Sequence[tuple[int, float]],
        after: Iterable[int],
        *,
        rank: int = -1,
        num_bytes: float = 0.0,
        fixed_s: float = 0.0,
        latency_s: float = 0.0,
        priority: int = 0,
        queue: int = 0,
    ) -> int:
        """A transfer; `rank`: its sender, -1 for a collective."""
        self.labels.append((SEND, rank, index))
        return self.tasks.transfer(
            loads, after, queue=queue, num_bytes=num_bytes, fixed_s=fixed_s, latency_s=latency_s, priority=priority
        )

    def barrier(self, after: Iterable[int], seconds: float = 0.0) -> int:
        self.labels.append((BARRIER, -1, 0))
        return self.tasks.join(after, seconds)

    def arrays(self) -> tuple[Tasks, Labels]:
        columns = np.array(self.labels, np.int64).reshape(-1, 3)
        labels = Labels(
            kind=columns[:, 0], rank=columns[:, 1], index=columns[:, 2], step=np.zeros(len(columns), np.int64)
        )
        return self.tasks.tasks(), labels
