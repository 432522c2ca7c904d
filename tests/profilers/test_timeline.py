"""Timelines: merged in order, cut by rank, summed by kind, moved in time."""

from __future__ import annotations

import random

import pytest

from autotune.profilers.timeline import Span, Timeline


def span(rank: int, start_s: float, end_s: float, kind: str = "forward") -> Span:
    return Span(rank=rank, track="compute", kind=kind, op=kind, start_s=start_s, end_s=end_s, num_bytes=rank * 10)


STEP = Timeline(
    spans=(
        span(0, 0.0, 1.0),
        span(1, 0.0, 2.0),
        span(0, 1.0, 3.0, "backward"),
        span(1, 2.0, 2.5, "backward"),
        span(0, 3.0, 3.25, "wait"),
    )
)


def test_a_span_lasts_from_start_to_end() -> None:
    assert span(0, 1.5, 4.0).duration_s == 2.5


def test_merging_the_ranks_timelines_gives_one_in_order_of_start() -> None:
    assert Timeline.merge([STEP.of_rank(1), STEP.of_rank(0)]) == STEP


def test_merging_does_not_depend_on_the_order_of_parts_or_spans() -> None:
    generator = random.Random(0)
    spans = [span(generator.randrange(3), generator.randrange(5), 5 + generator.randrange(5)) for _ in range(40)]
    merged = Timeline.merge([Timeline(spans=tuple(spans))])
    generator.shuffle(spans)
    assert Timeline.merge([Timeline(spans=tuple(spans[:13])), Timeline(spans=tuple(spans[13:]))]) == merged


def test_merging_nothing_is_an_empty_timeline() -> None:
    assert Timeline.merge([]) == Timeline.merge([Timeline(), Timeline()]) == Timeline()


def test_a_rank_keeps_its_spans_and_no_others() -> None:
    assert {span.rank for span in STEP.of_rank(1).spans} == {1}
    assert len(STEP.of_rank(0).spans) + len(STEP.of_rank(1).spans) == len(STEP.spans)
    assert STEP.of_rank(7) == Timeline()


@pytest.mark.parametrize(("kind", "total_s"), [("forward", 3.0), ("backward", 2.5), ("wait", 0.25), ("comm", 0.0)])
def test_the_time_of_a_kind_is_summed_over_ranks(kind: str, total_s: float) -> None:
    assert STEP.total_s(kind) == total_s


def test_shifting_moves_every_span_and_changes_nothing_else() -> None:
    moved = STEP.shifted(-0.5)
    assert [s.start_s for s in moved.spans] == [s.start_s - 0.5 for s in STEP.spans]
    assert [s.duration_s for s in moved.spans] == [s.duration_s for s in STEP.spans]
    assert moved.shifted(0.5) == STEP
