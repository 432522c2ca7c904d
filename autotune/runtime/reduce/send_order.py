"""Which partition of which fusion buffer is sent next: the decision, without what carries it out.

After ByteScheduler (Peng et al., SOSP 2019): gradients are cut into partitions, the partition nearest the model's input
goes first, and partitions are sent while fewer than `credit_bytes` are in flight (the last one may exceed the credit).
The difference: collectives deadlock unless every rank posts them in one order. So rank 0 decides for all ranks, and
schedules a partition only once its gradients are ready on **every** rank. A late rank delays only the buffers that it
has not filled.

Where the plan leaves nothing to decide (`needs_no_schedule`) every rank follows the same fixed order without messages.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from autotune.runtime.codecs.protocol import Identity
from autotune.runtime.control.ready import ReadyRanks, ReadyRound, ReadyRounds, ScheduledPartition
from autotune.runtime.reduce.fusion_buffer import FusionBuffer
from autotune.runtime.reduce.step_position import out_of_step, rarest
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import CommPlan, Priority
from autotune.workloads.plan.buckets import num_partitions


@dataclass(slots=True)
class _CutRound:
    """A round that all ranks have ready, of which `num_taken` partitions have been scheduled."""

    ready: ReadyRanks
    count: int
    num_taken: int = 0

    def take(self) -> ScheduledPartition:
        ready, index = self.ready, self.num_taken
        self.num_taken += 1
        return ScheduledPartition(
            ready.buffer, ready.round, index, self.count, ready.num_bytes, ready.sizes, ready.unused
        )


class SendOrder:
    """Takes ready rounds of all ranks, returns scheduled partitions. Not thread-safe: `Coordinator` holds a lock around
    it.

    `priorities`: per buffer, the smallest first; None: first come, first served.
    """

    def __init__(
        self,
        *,
        num_ranks: int,
        partition_bytes: int | None,
        credit_bytes: int | None,
        priorities: Sequence[int] | None = None,
    ) -> None:
        """`partition_bytes` None: nothing is cut. `credit_bytes` None: no limit."""
        self.partition_bytes, self.credit_bytes = partition_bytes, credit_bytes
        self._num_ranks = num_ranks
        self._priorities = priorities
        self._ready = ReadyRounds(num_ranks)
        self._waiting: list[tuple[int, int, _CutRound]] = []
        self._num_cut = 0
        self.in_flight_bytes = 0

    @classmethod
    def of(cls, comm: CommPlan, num_buffers: int, num_ranks: int) -> Self:
        """As the plan says. Buffers are numbered as backward fills them: the higher the number, the more urgent."""
        is_scheduled = comm.is_scheduled
        return cls(
            num_ranks=num_ranks,
            partition_bytes=comm.partition_bytes if is_scheduled else None,
            credit_bytes=comm.credit_bytes if is_scheduled else None,
            priorities=range(num_buffers, 0, -1) if is_scheduled and comm.priority == Priority.LAYER else None,
        )

    def mark_ready(self, rank: int, ready: ReadyRound) -> None:
        """A round that is ready on all ranks is cut and waits to be scheduled."""
        self.add(ReadyRanks.of(rank, ready))

    def add(self, part: ReadyRanks) -> None:
        """As `mark_ready`, for several ranks at once."""
        if (ready := self._ready.add(part)) is not None:
            self._cut(ready)

    def completed(self, num_bytes: int) -> None:
        """A partition has completed: its credit is free again."""
        self.in_flight_bytes -= num_bytes

    def take(self) -> list[ScheduledPartition]:
        """The partitions that may be posted now, in this order."""
        scheduled = []
        while self._waiting and (self.credit_bytes is None or self.in_flight_bytes < self.credit_bytes):
            most_urgent = self._waiting[0][-1]
            partition = most_urgent.take()
            if most_urgent.num_taken == most_urgent.count:
                heapq.heappop(self._waiting)
            self.in_flight_bytes += partition.num_bytes
            scheduled.append(partition)
        return scheduled

    def _cut(self, ready: ReadyRanks) -> None:
        if len(ready.positions) > 1:
            raise SpecError(out_of_step(rarest(ready.positions)))
        # A sum has the same size on every rank. A gather is sent whole, and the tensors of all ranks count.
        count = 1
        if ready.cuttable and self.partition_bytes is not None:
            count = num_partitions(self.partition_bytes, ready.num_bytes, ready.sizes[0])
        urgency = self._priorities[ready.buffer] if self._priorities is not None else 0
        heapq.heappush(self._waiting, (urgency, self._num_cut, _CutRound(ready, count)))
        self._num_cut += 1


class FixedOrder:
    """Schedules on one rank alone: buffers go in the order of their numbers, each as soon as this rank has it ready.

    Every rank has each buffer ready once before it has any of them ready again, so all ranks post in the same order.
    Not thread-safe: the backward pass serializes its calls.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        """`counts`: the number of partitions of each buffer."""
        self._counts = counts
        self._ready: dict[int, ReadyRound] = {}
        self._next = 0

    @classmethod
    def of(cls, comm: CommPlan, buffers: Sequence[FusionBuffer]) -> Self:
        """As the plan cuts these buffers."""
        if not comm.is_scheduled:
            return cls([1] * len(buffers))
        return cls(
            [num_partitions(comm.partition_bytes, buffer.flat.nbytes, buffer.flat.numel()) for buffer in buffers]
        )

    def mark_ready(self, ready: ReadyRound) -> list[ScheduledPartition]:
        """The partitions that may be posted now, in this order."""
        self._ready[ready.buffer] = ready
        scheduled: list[ScheduledPartition] = []
        while (following := self._ready.pop(self._next, None)) is not None:
            cut = _CutRound(ReadyRanks.of(0, following), self._counts[self._next])
            scheduled += [cut.take() for _ in range(cut.count)]
            self._next = (self._next + 1) % len(self._counts)
        return scheduled


def needs_no_schedule(comm: CommPlan, buffers: Sequence[FusionBuffer]) -> bool:
    """Whether nothing is left to decide: first come, first served, no limit on bytes in flight, plain sums."""
    is_unlimited = not comm.is_scheduled or (
        comm.priority == Priority.FIFO and comm.credit_bytes >= sum(buffer.whole.nbytes for buffer in buffers)
    )
    return is_unlimited and all(isinstance(buffer.codec, Identity) for buffer in buffers)
