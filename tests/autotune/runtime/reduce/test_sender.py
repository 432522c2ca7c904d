"""Ranks that are ready in different orders, at different times, with any cut and credit: everything lands, and sums are right."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from autotune.runtime.codecs.protocol import GATHER, SUM, SWAP, Round
from autotune.runtime.control.channel import Line, _caller, open_lines
from autotune.runtime.reduce.send_order import Grants, InTurn
from autotune.runtime.reduce.sender import Scheduler
from autotune.workloads.plan.buckets import num_partitions
from tests.gloo_ranks import on_ranks

LARGEST = 2**24
"""Elements of float32: 64 MiB."""


class Collected:
    """A listener that keeps what has landed."""

    def __init__(self) -> None:
        self.received: dict[int, list[Tensor]] = {}
        self.errors: list[Exception] = []
        self.changed = threading.Condition()

    def landed(self, unit: int, received: Sequence[Tensor], unused: Sequence[int]) -> None:
        assert not unused
        with self.changed:
            self.received[unit] = list(received)
            self.changed.notify_all()

    def failed(self, error: Exception) -> None:
        with self.changed:
            self.errors.append(error)
            self.changed.notify_all()

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.errors or len(self.received) == count, 20.0)
        assert not self.errors, self.errors


def value(unit: int, rank: int) -> float:
    return float(unit % 7 + 1) * (rank + 1)


def content(kind: str, size: int, unit: int, rank: int, num_ranks: int) -> Round:
    if kind == SUM:
        return Round(kind=SUM, tensors=(torch.full((size,), value(unit, rank)),))
    if kind == GATHER:
        return Round(kind=GATHER, tensors=(torch.full((size * rank,), value(unit, rank)),))  # rank 0 has nothing
    return Round(kind=SWAP, tensors=tuple(torch.full((size,), value(unit, rank) + to) for to in range(num_ranks)))


def is_right(kind: str, received: Sequence[Tensor], size: int, unit: int, group: dist.ProcessGroup) -> bool:
    ranks = range(group.size())
    if kind == SUM:
        return bool((received[0] == sum(value(unit, rank) for rank in ranks)).all()) and len(received[0]) == size
    if kind == GATHER:
        return all(torch.equal(received[rank], torch.full((size * rank,), value(unit, rank))) for rank in ranks)
    return all(torch.equal(received[rank], torch.full((size,), value(unit, rank) + group.rank())) for rank in ranks)


def short_run(group: dist.ProcessGroup, seed: int) -> None:
    """One scheduler, some units, an order and delays of this rank's own."""
    shared, own = random.Random(seed), random.Random(1000 * seed + group.rank())
    sizes = [int(2 ** shared.uniform(0, 14)) for _ in range(shared.randint(1, 12))]
    if seed % 100 == 0:
        sizes[0] = LARGEST
    kinds = [shared.choice((SUM, SUM, SUM, GATHER, SWAP)) for _ in sizes]
    partition, credit = (int(4 * 2 ** shared.uniform(0, 16)) for _ in range(2))
    partition = max(partition, 4 * max(sizes) // 200)
    priorities = [shared.randint(0, 5) for _ in sizes] if shared.random() < 0.7 else None
    in_turn = None
    if shared.random() < 0.15:  # nobody is asked: plain sums, in the order of their numbers
        kinds = [SUM] * len(sizes)
        in_turn = InTurn([num_partitions(partition, 4 * size, size) for size in sizes])
    kept = Collected()

    def grants() -> Grants:
        return Grants(num_ranks=group.size(), partition_bytes=partition, credit_bytes=credit, priorities=priorities)

    scheduler = Scheduler(group, grants, kept, in_turn)
    order = own.sample(range(len(sizes)), len(sizes))
    for unit in order:
        time.sleep(own.choice((0.0, 0.0, 0.0, 0.001)))
        scheduler.offer(unit, 0, content(kinds[unit], sizes[unit], unit, group.rank(), group.size()))
    if own.random() < 0.5 or in_turn is not None:  # by the thread that waits, or the scheduler's own
        assert scheduler.wait_until(lambda: bool(kept.errors) or len(kept.received) == len(sizes), 20.0)
    kept.wait(len(sizes))
    scheduler.close()
    for unit, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        assert is_right(kind, kept.received[unit], size, unit, group), (seed, unit, kind, size)


@pytest.mark.parametrize("size", [2, 3])
def test_everything_lands_whatever_the_order(size: int) -> None:
    def run(group: dist.ProcessGroup) -> None:
        for seed in range(20):
            short_run(group, seed)

    assert on_ranks(size, run, timeout_s=60) == [None] * size


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_deadlock_in_a_thousand_short_runs() -> None:
    def run(group: dist.ProcessGroup) -> None:
        for seed in range(1000):
            short_run(group, seed)

    assert on_ranks(4, run, timeout_s=120) == [None] * 4


def test_a_rank_that_is_gone_ends_the_exchange_everywhere() -> None:
    """Its process has died: its line is closed without a word."""

    def run(group: dist.ProcessGroup) -> list[str]:
        kept = Collected()
        scheduler = Scheduler(group, lambda: Grants(num_ranks=3, partition_bytes=100, credit_bytes=100), kept)
        scheduler.offer(0, 0, content(SUM, 10, 0, group.rank(), 3))
        kept.wait(1)
        group.barrier(dist.BarrierOptions()).wait()
        if group.rank() == 2:
            scheduler._desk._line.cut()
        with kept.changed:
            kept.changed.wait_for(lambda: kept.errors, 10.0)
        scheduler.close()
        return [str(error) for error in kept.errors]

    found: list[Any] = on_ranks(3, run)
    assert all("rank 2 is gone" in found[rank][0] for rank in (0, 1)), found


def test_a_stranger_on_the_line_is_turned_away() -> None:
    for message in (["wrong", 1], "nonsense", 7, [1], {"a": 1}):
        here, there = (Line(end) for end in socket.socketpair())
        there.send(message)
        assert _caller(here, "token") is None
        here.close()
        there.close()
    here, there = (Line(end) for end in socket.socketpair())
    there.connection.send_bytes(b"\xff\xfe{")
    assert _caller(here, "token") is None
    there.close()
    assert _caller(here, "token") is None
    here.close()


def test_lines_join_every_rank_with_rank_0() -> None:
    def run(group: dist.ProcessGroup) -> list[Any]:
        lines = open_lines(group)
        for line in lines:
            line.send(group.rank())
        heard = [line.receive() for line in lines]
        for line in lines:
            line.close()
        return heard

    assert on_ranks(3, run) == [[1, 2], [0], [0]]
