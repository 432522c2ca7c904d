"""Timed communication between ranks: a message and its answer, an all-reduce, a broadcast, an all-gather.

Each can verify its result and run in a loop that all ranks start and end together, so that clocks of different ranks are
never compared. As in nccl-tests, checking and timing are separate: values are checked once per size, and loops run on
zeros, which an in-place all-reduce does not change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions

from autotune.runtime.device import handle

ELEMENT_BYTES = 4
ANSWER_BYTES = ELEMENT_BYTES
_LEAD_IN = 2**18
"""A loop begins with an untimed exchange of at most this many elements: it synchronizes the ranks, and uses up what a token
bucket has saved while nothing was sent."""
NUM_IN_FLIGHT = 8
_DATA_TAG, _ANSWER_TAG = 1, 2
_PERIOD = 7
"""Test values repeat 1 to this number: small integers, whose sums are exact in float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupMember:
    """One rank of a process group."""

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
        """The contribution of rank `rank`: nearby positions differ, and so do ranks."""
        return (torch.arange(num_elements, device=self.device) % _PERIOD + 1.0) * (rank + 1)

    def synchronize(self) -> None:
        """On an accelerator the wait for a collective only enqueues: wait for the device."""
        handle(self.device).synchronize()


class Exchange(Protocol):
    """An exchange that all ranks call together; ranks without a part in it return zeros."""

    def size_of(self, num_bytes: int) -> int:
        """The size that is exchanged, near `num_bytes`: whole elements, the same number for each rank."""

    def check(self, num_bytes: int) -> int:
        """Run once with known values; the number of wrong elements on this rank."""

    def loop(self, num_bytes: int, count: int) -> float:
        """Seconds of `count` exchanges, one after another, on this rank's clock."""


class Message:
    """`source` sends, `target` answers with one element; timed by the source, so the time is that of a round trip."""

    def __init__(self, member: GroupMember, source: int, target: int) -> None:
        self._member, self._source, self._target = member, source, target

    def size_of(self, num_bytes: int) -> int:
        return max(num_bytes // ELEMENT_BYTES, 1) * ELEMENT_BYTES

    def check(self, num_bytes: int) -> int:
        expected = self._member.values(num_bytes // ELEMENT_BYTES, self._source)
        data = expected.clone() if self._member.rank == self._source else torch.zeros_like(expected)
        self._pass(data, 1)
        return int((data != expected).sum()) if self._member.rank == self._target else 0

    def loop(self, num_bytes: int, count: int) -> float:
        data = self._member.zeros(num_bytes // ELEMENT_BYTES)
        self._pass(data[:_LEAD_IN], 1)
        begun = time.perf_counter()
        self._pass(data, count)
        return time.perf_counter() - begun if self._member.rank == self._source else 0.0

    def _pass(self, data: Tensor, count: int) -> None:
        """Receives are posted before sends: gloo announces them on the connection that carries the data."""
        group, answer = self._member.group, self._member.zeros(1)
        if self._member.rank == self._source:
            for _ in range(count):
                answered = group.recv([answer], self._target, _ANSWER_TAG)
                group.send([data], self._target, _DATA_TAG).wait()
                answered.wait()
                self._member.synchronize()
        elif self._member.rank == self._target:
            received = group.recv([data], self._source, _DATA_TAG)
            for left in reversed(range(count)):
                received.wait()
                self._member.synchronize()
                if left:
                    received = group.recv([data], self._source, _DATA_TAG)
                group.send([answer], self._source, _ANSWER_TAG).wait()


class AllReduce:
    """Sum over all ranks, in place."""

    def __init__(self, member: GroupMember) -> None:
        self._member = member

    def size_of(self, num_bytes: int) -> int:
        return max(num_bytes // ELEMENT_BYTES, 1) * ELEMENT_BYTES

    def check(self, num_bytes: int) -> int:
        member = self._member
        data = member.values(num_bytes // ELEMENT_BYTES, member.rank)
        self._run(data)
        member.synchronize()
        expected = member.values(len(data), 0) * (member.size * (member.size + 1) / 2)
        return int((data != expected).sum())

    def loop(self, num_bytes: int, count: int) -> float:
        """An all-reduce ends only after all ranks have joined, so a loop synchronizes the ranks."""
        data = self._member.zeros(num_bytes // ELEMENT_BYTES)
        self._run(data[:_LEAD_IN])
        return _timed(self._member, lambda: self._run(data), count)

    def _run(self, data: Tensor) -> None:
        self._member.group.allreduce([data], dist.AllreduceOptions()).wait()


class AllReducesInFlight(AllReduce):
    """Several all-reduces that are posted together; the time is that of each. What their software does one after another takes
    as long as alone; what it does side by side, and latencies, take less.
    """

    def loop(self, num_bytes: int, count: int) -> float:
        arrays = [self._member.zeros(num_bytes // ELEMENT_BYTES) for _ in range(NUM_IN_FLIGHT)]
        self._run(arrays[0][:_LEAD_IN])
        return _timed(self._member, lambda: self._run_together(arrays), count) / NUM_IN_FLIGHT

    def _run_together(self, arrays: Sequence[Tensor]) -> None:
        for work in [self._member.group.allreduce([array], dist.AllreduceOptions()) for array in arrays]:
            work.wait()


class AllGather:
    """The parts of all ranks, on every rank. The size is that of all parts."""

    def __init__(self, member: GroupMember) -> None:
        self._member = member

    def size_of(self, num_bytes: int) -> int:
        return max(num_bytes // ELEMENT_BYTES // self._member.size, 1) * self._member.size * ELEMENT_BYTES

    def check(self, num_bytes: int) -> int:
        member, part = self._member, num_bytes // ELEMENT_BYTES // self._member.size
        parts = [member.zeros(part) for _ in range(member.size)]
        self._run(parts, member.values(part, member.rank))
        member.synchronize()
        return sum(int((found != member.values(part, rank)).sum()) for rank, found in enumerate(parts))

    def loop(self, num_bytes: int, count: int) -> float:
        part = num_bytes // ELEMENT_BYTES // self._member.size
        parts, own = (
            [self._member.zeros(part) for _ in range(self._member.size)],
            self._member.zeros(part),
        )
        self._run([one[:_LEAD_IN] for one in parts], own[:_LEAD_IN])
        return _timed(self._member, lambda: self._run(parts, own), count)

    def _run(self, parts: list[Tensor], own: Tensor) -> None:
        self._member.group.allgather([parts], [own], AllgatherOptions()).wait()


class Broadcast:
    """Rank 0's array on every rank. Its sender may complete before it has arrived, so each is followed by an all-reduce of
    one element, whose time is subtracted: the time is that of the last rank to receive.
    """

    def __init__(self, member: GroupMember) -> None:
        self._member = member
        self._options: Any = dist.BroadcastOptions()
        self._options.rootRank, self._options.rootTensor = 0, 0

    def size_of(self, num_bytes: int) -> int:
        return max(num_bytes // ELEMENT_BYTES, 1) * ELEMENT_BYTES

    def check(self, num_bytes: int) -> int:
        expected = self._member.values(num_bytes // ELEMENT_BYTES, 0)
        data = expected.clone() if self._member.rank == 0 else torch.zeros_like(expected)
        self._run(data)
        self._member.synchronize()
        return int((data != expected).sum())

    def loop(self, num_bytes: int, count: int) -> float:
        data, one = self._member.zeros(num_bytes // ELEMENT_BYTES), self._member.zeros(1)
        group = self._member.group

        def arrive() -> None:
            group.allreduce([one], dist.AllreduceOptions()).wait()

        def run_and_arrive() -> None:
            self._run(data)
            arrive()

        self._run(data[:_LEAD_IN])
        arrive()
        both_s = _timed(self._member, run_and_arrive, count)
        return max(both_s - _timed(self._member, arrive, count), 0.0)

    def _run(self, data: Tensor) -> None:
        self._member.group.broadcast([data], self._options).wait()


def _timed(member: GroupMember, run: Callable[[], None], count: int) -> float:
    member.synchronize()
    begun = time.perf_counter()
    for _ in range(count):
        run()
    member.synchronize()
    return time.perf_counter() - begun
