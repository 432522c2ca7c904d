"""What can be timed between ranks: a message and its answer, an all-reduce, a broadcast, an all-gather.

Each can check itself (is every element what it has to be?) and run in a loop that starts and ends in step, so that no two
ranks' clocks are ever compared. As in nccl-tests, checking and timing are apart: values are checked once per size, and
loops run on zeros, which an all-reduce in place leaves as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions

ELEMENT_BYTES = 4
ANSWER_BYTES = ELEMENT_BYTES
_LEAD_IN = 2**18
"""A loop begins with an exchange of at most this many elements, untimed: all ranks are there then, and what a token bucket
had saved up while nothing was sent is used up."""
_DATA_TAG, _ANSWER_TAG = 1, 2
_PERIOD = 7
"""Test values count from 1 to this and start over: small whole numbers, whose sums float32 holds exactly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupMember:
    """A rank's place in a group."""

    group: dist.ProcessGroup
    device: torch.device

    @property
    def rank(self) -> int:
        return self.group.rank()

    @property
    def size(self) -> int:
        return self.group.size()

    def zeros(self, num_elements: int) -> Tensor:
        return torch.zeros(num_elements, device=self.device)

    def values(self, num_elements: int, rank: int) -> Tensor:
        """What rank `rank` contributes: different in every position nearby, and from every other rank."""
        return (torch.arange(num_elements, device=self.device) % _PERIOD + 1.0) * (rank + 1)

    def synchronize(self) -> None:
        """On a GPU a collective is only queued when its work says done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Exchange(Protocol):
    """Something all ranks do together; ranks without a part in it return zeros."""

    def size_of(self, num_bytes: int) -> int:
        """The size that really goes, near `num_bytes`: whole elements, and as many for each rank."""

    def check(self, num_bytes: int) -> int:
        """Do it once with known values; how many elements came out wrong on this rank."""

    def loop(self, num_bytes: int, count: int) -> float:
        """Seconds that `count` of them take one after the other, on this rank's clock."""


class Message:
    """`source` sends, `target` answers with one element; timed by the source, so it takes there and back."""

    def __init__(self, rank_context: GroupMember, source: int, target: int) -> None:
        self._rank_context, self._source, self._target = rank_context, source, target

    def size_of(self, num_bytes: int) -> int:
        return max(num_bytes // ELEMENT_BYTES, 1) * ELEMENT_BYTES

    def check(self, num_bytes: int) -> int:
        expected = self._rank_context.values(num_bytes // ELEMENT_BYTES, self._source)
        data = expected.clone() if self._rank_context.rank == self._source else torch.zeros_like(expected)
        self._pass(data, 1)
        return int((data != expected).sum()) if self._rank_context.rank == self._target else 0

    def loop(self, num_bytes: int, count: int) -> float:
        data = self._rank_context.zeros(num_bytes // ELEMENT_BYTES)
        self._pass(data[:_LEAD_IN], 1)
        begun = time.perf_counter()
        self._pass(data, count)
        return time.perf_counter() - begun if self._rank_context.rank == self._source else 0.0

    def _pass(self, data: Tensor, count: int) -> None:
        """Receives are posted before sends: gloo announces them on the connection that carries the bulk."""
        group, answer = self._rank_context.group, self._rank_context.zeros(1)
        if self._rank_context.rank == self._source:
            for _ in range(count):
                answered = group.recv([answer], self._target, _ANSWER_TAG)
                group.send([data], self._target, _DATA_TAG).wait()
                answered.wait()
                self._rank_context.synchronize()
        elif self._rank_context.rank == self._target:
            received = group.recv([data], self._source, _DATA_TAG)
            for left in reversed(range(count)):
                received.wait()
                if left:
                    received = group.recv([data], self._source, _DATA_TAG)
                group.send([answer], self._source, _ANSWER_TAG).wait()


class AllReduce:
    """Sum over all ranks, in place."""

    def __init__(self, rank_context: GroupMember) -> None:
        self._rank_context = rank_context

    def size_of(self, num_bytes: int) -> int:
        return max(num_bytes // ELEMENT_BYTES, 1) * ELEMENT_BYTES

    def check(self, num_bytes: int) -> int:
        rank_context = self._rank_context
        data = rank_context.values(num_bytes // ELEMENT_BYTES, rank_context.rank)
        self._run(data)
        rank_context.synchronize()
        expected = rank_context.values(len(data), 0) * (rank_context.size * (rank_context.size + 1) / 2)
        return int((data != expected).sum())

    def loop(self, num_bytes: int, count: int) -> float:
        """Nobody can be done before everybody has joined, so a loop keeps the ranks in step by itself."""
        data = self._rank_context.zeros(num_bytes // ELEMENT_BYTES)
        self._run(data[:_LEAD_IN])
        return _timed(self._rank_context, lambda: self._run(data), count)

    def _run(self, data: Tensor) -> None:
        self._rank_context.group.allreduce([data], dist.AllreduceOptions()).wait()


class AllGather:
    """Everybody's part, on every rank. Size is that of all parts together."""

    def __init__(self, rank_context: GroupMember) -> None:
        self._rank_context = rank_context

    def size_of(self, num_bytes: int) -> int:
        return max(num_bytes // ELEMENT_BYTES // self._rank_context.size, 1) * self._rank_context.size * ELEMENT_BYTES

    def check(self, num_bytes: int) -> int:
        rank_context, part = self._rank_context, num_bytes // ELEMENT_BYTES // self._rank_context.size
        parts = [rank_context.zeros(part) for _ in range(rank_context.size)]
        self._run(parts, rank_context.values(part, rank_context.rank))
        rank_context.synchronize()
        return sum(int((found != rank_context.values(part, rank)).sum()) for rank, found in enumerate(parts))

    def loop(self, num_bytes: int, count: int) -> float:
        part = num_bytes // ELEMENT_BYTES // self._rank_context.size
        parts, own = (
            [self._rank_context.zeros(part) for _ in range(self._rank_context.size)],
            self._rank_context.zeros(part),
        )
        self._run([one[:_LEAD_IN] for one in parts], own[:_LEAD_IN])
        return _timed(self._rank_context, lambda: self._run(parts, own), count)

    def _run(self, parts: list[Tensor], own: Tensor) -> None:
        self._rank_context.group.allgather([parts], [own], AllgatherOptions()).wait()


class Broadcast:
    """Rank 0's array on every rank. Its sender may go on before it has arrived, so each is followed by an all-reduce of
    one element, whose own time is taken off: the time is that of the rank that has it last.
    """

    def __init__(self, rank_context: GroupMember) -> None:
        self._rank_context = rank_context
        self._options: Any = dist.BroadcastOptions()
        self._options.rootRank, self._options.rootTensor = 0, 0

    def size_of(self, num_bytes: int) -> int:
        return max(num_bytes // ELEMENT_BYTES, 1) * ELEMENT_BYTES

    def check(self, num_bytes: int) -> int:
        expected = self._rank_context.values(num_bytes // ELEMENT_BYTES, 0)
        data = expected.clone() if self._rank_context.rank == 0 else torch.zeros_like(expected)
        self._run(data)
        self._rank_context.synchronize()
        return int((data != expected).sum())

    def loop(self, num_bytes: int, count: int) -> float:
        data, one = self._rank_context.zeros(num_bytes // ELEMENT_BYTES), self._rank_context.zeros(1)
        group = self._rank_context.group

        def arrive() -> None:
            group.allreduce([one], dist.AllreduceOptions()).wait()

        def run_and_arrive() -> None:
            self._run(data)
            arrive()

        self._run(data[:_LEAD_IN])
        arrive()
        both_s = _timed(self._rank_context, run_and_arrive, count)
        return max(both_s - _timed(self._rank_context, arrive, count), 0.0)

    def _run(self, data: Tensor) -> None:
        self._rank_context.group.broadcast([data], self._options).wait()


def _timed(rank_context: GroupMember, run: Callable[[], None], count: int) -> float:
    rank_context.synchronize()
    begun = time.perf_counter()
    for _ in range(count):
        run()
    rank_context.synchronize()
    return time.perf_counter() - begun
