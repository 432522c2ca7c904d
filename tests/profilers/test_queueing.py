"""Ready here, ready everywhere, sent: two waits, told apart."""

from __future__ import annotations

import pytest

from autotune.profilers.queueing import Queueing, queueing
from autotune.profilers.timeline import Span, Timeline


def part(rank: int, ready_s: float, sent_s: float, op: str = "unit 0 part 0") -> list[Span]:
    sent = Span(rank=rank, track="comm", kind="comm", op=op, start_s=sent_s, end_s=sent_s + 1)
    if ready_s == sent_s:
        return [sent]
    return [Span(rank=rank, track="comm", kind="queue", op=op, start_s=ready_s, end_s=sent_s), sent]


def found(*parts: list[Span]) -> Queueing:
    return queueing(Timeline(spans=tuple(span for one in parts for span in one)))


def test_a_late_rank_and_a_schedule_are_distinguished() -> None:
    """Rank 0 is ready at 1, rank 1 at 3; both send at 4."""
    assert found(part(0, 1.0, 4.0), part(1, 3.0, 4.0)) == Queueing(num_parts=1, for_ranks_s=1.0, for_turn_s=1.0)


def test_what_is_sent_at_once_never_waits() -> None:
    assert found(part(0, 2.0, 2.0), part(1, 2.0, 2.0)) == Queueing(num_parts=1)


def test_parts_are_averaged() -> None:
    both = found(part(0, 0.0, 0.0), part(0, 0.0, 3.0, op="unit 0 part 1"))
    assert (both.num_parts, both.for_ranks_s, both.for_turn_s) == (2, 0.0, pytest.approx(1.5))


def test_nothing_sent_is_nothing() -> None:
    assert found() == Queueing()
