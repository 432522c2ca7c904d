"""Tasks with labels, made one by one: what pipelines and parameter servers are expanded with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autotune.simulate.engine import Tasks
from autotune.simulate.layout import MEET, SEND, Labels
from autotune.simulate.tasks import NO_CHANGE, MemoryChange, TaskList


@dataclass(kw_only=True, slots=True)
class LabelledTasks:
    """One step in the making. A rank's own tasks follow each other in the order in which they are added."""

    tasks: TaskList = field(default_factory=TaskList)
    labels: list[tuple[int, int, int]] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)
    """The last task of each rank so far."""

    def work(  # noqa: PLR0913, PLR0917 - what, whose, how long, after what
        self,
        kind: int,
        rank: int,
        index: int,
        seconds: float,
        after: Iterable[int] = (),
        memory: MemoryChange = NO_CHANGE,
    ) -> int:
        """Something on a rank's device, after what the rank did before."""
        before = [self.last[rank]] if rank in self.last else []
        self.last[rank] = self.tasks.compute(rank, seconds, [*before, *after], memory=memory)
        self.labels.append((kind, rank, index))
        return self.last[rank]

    def send(  # noqa: PLR0913 - a transfer has this many sides
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
    ) -> int:
        """A transfer; `rank`: whose it is, -1 for a collective."""
        self.labels.append((SEND, rank, index))
        return self.tasks.transfer(
            loads, after, num_bytes=num_bytes, fixed_s=fixed_s, latency_s=latency_s, priority=priority
        )

    def meet(self, after: Iterable[int]) -> int:
        self.labels.append((MEET, -1, 0))
        return self.tasks.join(after)

    def arrays(self) -> tuple[Tasks, Labels]:
        columns = np.array(self.labels, np.int64).reshape(-1, 3)
        labels = Labels(
            kind=columns[:, 0], rank=columns[:, 1], index=columns[:, 2], step=np.zeros(len(columns), np.int64)
        )
        return self.tasks.tasks(), labels
