"""Which partition goes next: only what every rank has ready, the urgent first, within the credit."""

from __future__ import annotations

import random

import pytest

from autotune.runtime.reduce.send_order import FixedOrder, ReadyRound, ScheduledPartition, SendOrder


def ready(buffer: int, num_bytes: int = 100, *, unused: tuple[int, ...] = (), cuttable: bool = True) -> ReadyRound:
    return ReadyRound(
        buffer=buffer, round=0, num_bytes=num_bytes, num_elements=num_bytes // 4, cuttable=cuttable, unused=unused
    )


def names(scheduled: list[ScheduledPartition]) -> list[tuple[int, int]]:
    return [(one.buffer, one.partition) for one in scheduled]


def test_what_one_rank_lacks_is_not_scheduled() -> None:
    order = SendOrder(num_ranks=2, partition_bytes=1000, credit_bytes=1000, priorities=(1, 0))
    order.mark_ready(0, ready(0))
    order.mark_ready(0, ready(1))
    assert order.take() == []
    order.mark_ready(1, ready(0))
    assert names(order.take()) == [(0, 0)]


def test_urgent_partitions_overtake_waiting_ones() -> None:
    order = SendOrder(num_ranks=1, partition_bytes=40, credit_bytes=40, priorities=(1, 0))
    order.mark_ready(0, ready(0, 120))
    assert names(order.take()) == [(0, 0)]
    order.mark_ready(0, ready(1, 80))
    order.completed(40)
    assert names(order.take()) == [(1, 0)]
    order.completed(40)
    assert names(order.take()) == [(1, 1)]
    order.completed(40)
    assert names(order.take()) == [(0, 1)]


def test_without_priorities_the_first_to_be_ready_on_all_ranks_goes_first() -> None:
    order = SendOrder(num_ranks=1, partition_bytes=100, credit_bytes=10**9)
    for buffer in (2, 0, 1):
        order.mark_ready(0, ready(buffer))
    assert names(order.take()) == [(2, 0), (0, 0), (1, 0)]


def test_the_credit_may_be_exceeded_by_one_partition() -> None:
    order = SendOrder(num_ranks=1, partition_bytes=100, credit_bytes=150)
    order.mark_ready(0, ready(0, 400))
    assert names(order.take()) == [(0, 0), (0, 1)]
    assert order.in_flight_bytes == 200
    order.completed(100)
    assert names(order.take()) == [(0, 2)]


def test_a_gather_is_sent_whole_with_the_sizes_of_all_ranks() -> None:
    order = SendOrder(num_ranks=2, partition_bytes=10, credit_bytes=10**9)
    order.mark_ready(1, ready(0, 40, cuttable=False))
    order.mark_ready(0, ready(0, 80, cuttable=False))
    (scheduled,) = order.take()
    assert (scheduled.num_partitions, scheduled.num_bytes, scheduled.sizes) == (1, 120, (20, 10))


def test_unused_is_what_no_rank_used() -> None:
    order = SendOrder(num_ranks=3, partition_bytes=1000, credit_bytes=1000)
    for rank, unused in enumerate([(0, 1, 2), (1, 2), (2, 1, 5)]):
        order.mark_ready(rank, ready(0, unused=unused))
    assert order.take()[0].unused == (1, 2)


@pytest.mark.parametrize("seed", range(50))
def test_every_byte_is_scheduled_once_in_any_order_of_events(seed: int) -> None:
    draw = random.Random(seed)
    num_ranks, sizes = draw.randint(1, 4), [4 * draw.randint(1, 200) for _ in range(draw.randint(1, 12))]
    credit = draw.choice((1, 50, 400, 10**9))
    order = SendOrder(
        num_ranks=num_ranks,
        partition_bytes=draw.choice((1, 16, 100, 10**9)),
        credit_bytes=credit,
        priorities=[draw.randint(0, 3) for _ in sizes] if draw.random() < 0.5 else None,
    )
    events = [(rank, buffer) for rank in range(num_ranks) for buffer in range(len(sizes))]
    draw.shuffle(events)
    seen: list[ScheduledPartition] = []
    in_flight: list[ScheduledPartition] = []
    for _ in range(100_000):
        if not events and len(in_flight) == 0 and not (fresh := order.take()):
            break
        if events and draw.random() < 0.5:
            rank, buffer = events.pop()
            order.mark_ready(rank, ready(buffer, sizes[buffer]))
        elif in_flight:
            order.completed(in_flight.pop(draw.randrange(len(in_flight))).num_bytes)
        fresh = order.take()
        assert not fresh or order.in_flight_bytes - fresh[-1].num_bytes < credit
        seen += fresh
        in_flight += fresh
    assert [sum(g.num_bytes for g in seen if g.buffer == buffer) for buffer in range(len(sizes))] == sizes
    assert len({(g.buffer, g.partition) for g in seen}) == len(seen)
    assert order.in_flight_bytes == 0


def test_in_a_fixed_order_buffers_go_by_their_numbers() -> None:
    order = FixedOrder([1, 2, 1])
    assert order.mark_ready(ready(1)) == []
    assert names(order.mark_ready(ready(0))) == [(0, 0), (1, 0), (1, 1)]
    assert names(order.mark_ready(ready(2))) == [(2, 0)]
    assert order.mark_ready(ready(2)) == []  # of the next step
    assert names(order.mark_ready(ready(0))) == [(0, 0)]
    assert names(order.mark_ready(ready(1))) == [(1, 0), (1, 1), (2, 0)]
