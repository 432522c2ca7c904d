"""With any order and time of ready rounds, partition size and credit, everything completes and sums are right."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from autotune.runtime.codecs.protocol import GATHER, SUM, SWAP, Round
from autotune.runtime.reduce.send_order import FixedOrder, SendOrder
from autotune.runtime.reduce.sender import Sender
from autotune.workloads.plan.buckets import num_partitions
from tests.gloo_ranks import on_ranks, rank_network

LARGE, LARGEST = 2**21, 2**24
"""Elements of float32: 8 and 64 MiB."""


class Collected:
    """A listener that keeps what has completed."""

    def __init__(self) -> None:
        self.received: dict[int, list[Tensor]] = {}
        self.errors: list[Exception] = []
        self.changed = threading.Condition()

    def completed(self, buffer: int, received: Sequence[Tensor], unused: Sequence[int]) -> None:
        assert not unused
        with self.changed:
            self.received[buffer] = list(received)
            self.changed.notify_all()

    def failed(self, error: Exception) -> None:
        with self.changed:
            self.errors.append(error)
            self.changed.notify_all()

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.errors or len(self.received) == count, 20.0)
        assert not self.errors, self.errors


def value(buffer: int, rank: int) -> float:
    return float(buffer % 7 + 1) * (rank + 1)


def content(kind: str, size: int, buffer: int, rank: int, num_ranks: int) -> Round:
    if kind == SUM:
        return Round(kind=SUM, tensors=(torch.full((size,), value(buffer, rank)),))
    if kind == GATHER:
        return Round(kind=GATHER, tensors=(torch.full((size * rank,), value(buffer, rank)),))  # rank 0 has nothing
    return Round(kind=SWAP, tensors=tuple(torch.full((size,), value(buffer, rank) + to) for to in range(num_ranks)))


def is_right(kind: str, received: Sequence[Tensor], size: int, buffer: int, group: dist.ProcessGroup) -> bool:
    ranks = range(group.size())
    if kind == SUM:
        return bool((received[0] == sum(value(buffer, rank) for rank in ranks)).all()) and len(received[0]) == size
    if kind == GATHER:
        return all(torch.equal(received[rank], torch.full((size * rank,), value(buffer, rank))) for rank in ranks)
    return all(torch.equal(received[rank], torch.full((size,), value(buffer, rank) + group.rank())) for rank in ranks)


def short_run(group: dist.ProcessGroup, seed: int, largest: int) -> None:
    """One sender, some buffers, an order and delays of this rank's own."""
    shared, own = random.Random(seed), random.Random(1000 * seed + group.rank())
    sizes = [int(2 ** shared.uniform(0, 14)) for _ in range(shared.randint(1, 12))]
    if seed % 100 == 0:
        sizes[0] = largest
    kinds = [shared.choice((SUM, SUM, SUM, GATHER, SWAP)) for _ in sizes]
    partition, credit = (int(4 * 2 ** shared.uniform(0, 16)) for _ in range(2))
    partition = max(partition, 4 * max(sizes) // 200)
    priorities = [shared.randint(0, 5) for _ in sizes] if shared.random() < 0.7 else None
    fixed_order = None
    if shared.random() < 0.15:  # no schedule: plain sums, in the order of their numbers
        kinds = [SUM] * len(sizes)
        fixed_order = FixedOrder([num_partitions(partition, 4 * size, size) for size in sizes])
    kept = Collected()

    def make_order() -> SendOrder:
        return SendOrder(num_ranks=group.size(), partition_bytes=partition, credit_bytes=credit, priorities=priorities)

    sender = Sender(group, rank_network(), make_order, kept, fixed_order)
    order = own.sample(range(len(sizes)), len(sizes))
    for buffer in order:
        time.sleep(own.choice((0.0, 0.0, 0.0, 0.001)))
        sender.mark_ready(buffer, 0, content(kinds[buffer], sizes[buffer], buffer, group.rank(), group.size()))
    if own.random() < 0.5 or fixed_order is not None:  # by the thread that waits, or the sender's own
        assert sender.wait_until(lambda: bool(kept.errors) or len(kept.received) == len(sizes), 20.0)
    kept.wait(len(sizes))
    sender.close()
    for buffer, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        assert is_right(kind, kept.received[buffer], size, buffer, group), (seed, buffer, kind, size)


@pytest.mark.parametrize("size", [2, 3])
def test_everything_completes_in_any_order(size: int) -> None:
    def run(group: dist.ProcessGroup) -> None:
        for seed in range(10):
            short_run(group, seed, LARGE)

    assert on_ranks(size, run, timeout_s=60) == [None] * size


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_deadlock_in_a_thousand_short_runs() -> None:
    def run(group: dist.ProcessGroup) -> None:
        for seed in range(1000):
            short_run(group, seed, LARGEST)

    assert on_ranks(4, run, timeout_s=120, limit_s=850) == [None] * 4


def test_a_rank_that_is_gone_ends_the_exchange_everywhere() -> None:
    """Its process has died: its connections end without a farewell."""

    def run(group: dist.ProcessGroup) -> list[str]:
        kept = Collected()
        sender = Sender(
            group, rank_network(), lambda: SendOrder(num_ranks=3, partition_bytes=100, credit_bytes=100), kept
        )
        sender.mark_ready(0, 0, content(SUM, 10, 0, group.rank(), 3))
        kept.wait(1)
        group.barrier(dist.BarrierOptions()).wait()
        if group.rank() == 2:
            rank_network().stop()
        with kept.changed:
            kept.changed.wait_for(lambda: kept.errors, 10.0)
        sender.close()
        return [str(error) for error in kept.errors]

    found: list[Any] = on_ranks(3, run)
    assert all("rank 2 is gone" in found[rank][0] for rank in (0, 1)), found
