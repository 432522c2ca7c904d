"""Which part goes next: only what every rank has, the urgent first, and no more under way than the credit allows."""

from __future__ import annotations

import random

import pytest

from autotune.runtime.reduce.send_order import Grant, Grants, InTurn, Offer


def offer(unit: int, num_bytes: int = 100, *, unused: tuple[int, ...] = (), cuttable: bool = True) -> Offer:
    return Offer(unit=unit, round=0, num_bytes=num_bytes, num_elements=num_bytes // 4, cuttable=cuttable, unused=unused)


def names(granted: list[Grant]) -> list[tuple[int, int]]:
    return [(grant.unit, grant.part) for grant in granted]


def test_what_one_rank_lacks_is_not_granted() -> None:
    grants = Grants(num_ranks=2, partition_bytes=1000, credit_bytes=1000, priorities=(1, 0))
    grants.offer(0, offer(0))
    grants.offer(0, offer(1))
    assert grants.take() == []
    grants.offer(1, offer(0))
    assert names(grants.take()) == [(0, 0)]


def test_the_urgent_overtake_what_waits() -> None:
    grants = Grants(num_ranks=1, partition_bytes=40, credit_bytes=40, priorities=(1, 0))
    grants.offer(0, offer(0, 120))
    assert names(grants.take()) == [(0, 0)]
    grants.offer(0, offer(1, 80))
    grants.landed(40)
    assert names(grants.take()) == [(1, 0)]
    grants.landed(40)
    assert names(grants.take()) == [(1, 1)]
    grants.landed(40)
    assert names(grants.take()) == [(0, 1)]


def test_without_priorities_the_first_to_be_complete_goes_first() -> None:
    grants = Grants(num_ranks=1, partition_bytes=100, credit_bytes=10**9)
    for unit in (2, 0, 1):
        grants.offer(0, offer(unit))
    assert names(grants.take()) == [(2, 0), (0, 0), (1, 0)]


def test_the_credit_may_be_passed_by_one_part() -> None:
    grants = Grants(num_ranks=1, partition_bytes=100, credit_bytes=150)
    grants.offer(0, offer(0, 400))
    assert names(grants.take()) == [(0, 0), (0, 1)]
    assert grants.under_way_bytes == 200
    grants.landed(100)
    assert names(grants.take()) == [(0, 2)]


def test_what_is_gathered_travels_whole_with_everybodys_size() -> None:
    grants = Grants(num_ranks=2, partition_bytes=10, credit_bytes=10**9)
    grants.offer(1, offer(0, 40, cuttable=False))
    grants.offer(0, offer(0, 80, cuttable=False))
    (granted,) = grants.take()
    assert (granted.num_parts, granted.num_bytes, granted.sizes) == (1, 120, (20, 10))


def test_unused_is_what_nobody_used() -> None:
    grants = Grants(num_ranks=3, partition_bytes=1000, credit_bytes=1000)
    for rank, unused in enumerate([(0, 1, 2), (1, 2), (2, 1, 5)]):
        grants.offer(rank, offer(0, unused=unused))
    assert grants.take()[0].unused == (1, 2)


@pytest.mark.parametrize("seed", range(50))
def test_every_byte_is_granted_once_in_any_order_of_events(seed: int) -> None:
    draw = random.Random(seed)
    num_ranks, sizes = draw.randint(1, 4), [4 * draw.randint(1, 200) for _ in range(draw.randint(1, 12))]
    credit = draw.choice((1, 50, 400, 10**9))
    grants = Grants(
        num_ranks=num_ranks,
        partition_bytes=draw.choice((1, 16, 100, 10**9)),
        credit_bytes=credit,
        priorities=[draw.randint(0, 3) for _ in sizes] if draw.random() < 0.5 else None,
    )
    events = [(rank, unit) for rank in range(num_ranks) for unit in range(len(sizes))]
    draw.shuffle(events)
    seen: list[Grant] = []
    under_way: list[Grant] = []
    for _ in range(100_000):
        if not events and len(under_way) == 0 and not (fresh := grants.take()):
            break
        if events and draw.random() < 0.5:
            rank, unit = events.pop()
            grants.offer(rank, offer(unit, sizes[unit]))
        elif under_way:
            grants.landed(under_way.pop(draw.randrange(len(under_way))).num_bytes)
        fresh = grants.take()
        assert not fresh or grants.under_way_bytes - fresh[-1].num_bytes < credit
        seen += fresh
        under_way += fresh
    assert [sum(g.num_bytes for g in seen if g.unit == unit) for unit in range(len(sizes))] == sizes
    assert len({(g.unit, g.part) for g in seen}) == len(seen)
    assert grants.under_way_bytes == 0


def test_where_nothing_is_to_be_decided_units_go_in_their_order() -> None:
    turns = InTurn([1, 2, 1])
    assert turns.offer(offer(1)) == []
    assert names(turns.offer(offer(0))) == [(0, 0), (1, 0), (1, 1)]
    assert names(turns.offer(offer(2))) == [(2, 0)]
    assert turns.offer(offer(2)) == []  # of the next step
    assert names(turns.offer(offer(0))) == [(0, 0)]
    assert names(turns.offer(offer(1))) == [(1, 0), (1, 1), (2, 0)]
