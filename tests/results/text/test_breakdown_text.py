"""Bars and words for a step of which every part is known."""

from __future__ import annotations

import dataclasses
import io

from autotune.profilers.breakdown import Breakdown, RankBreakdown, largest_costs
from autotune.results.judge.report import build_report
from autotune.results.show.report_console import make_console, show_breakdown, show_report
from autotune.results.text.breakdown_text import BAR_WIDTH, bar, bars
from autotune.workloads.serial import from_data, to_data
from tests.results import sample

FAST = RankBreakdown(
    rank=0,
    start_s=0.0,
    end_s=1.0,
    compute_s=0.5,
    data_s=0.02,
    exposed_s=0.1,
    straggler_s=0.38,
    overlapped_s=0.3,
    communication_s=0.4,
    waited_for_s={1: 0.38},
)
SLOW = RankBreakdown(rank=1, start_s=0.0, end_s=1.0, compute_s=0.9, exposed_s=0.1, communication_s=0.1)
STEP = Breakdown(ranks=(FAST, SLOW), step_s=1.0)


def test_a_bar_shows_each_part_in_proportion_and_is_as_long_as_the_step() -> None:
    assert bar(FAST, 1.0) == "#" * 22 + "d" + "=" * 4 + "." * 17
    assert bar(SLOW, 1.0) == "#" * 40 + "=" * 4
    assert len(bar(SLOW, 2.0).rstrip()) == BAR_WIDTH // 2
    assert len(bar(SLOW, 2.0)) == BAR_WIDTH


def test_a_rank_without_time_has_an_empty_bar() -> None:
    empty = RankBreakdown(rank=0, start_s=0.0, end_s=0.0)
    assert bars(Breakdown(ranks=(empty,))) == [f"rank 0  |{' ' * BAR_WIDTH}| 0 ms, 0 % compute"]


def test_many_ranks_are_counted_instead_of_shown() -> None:
    lines = bars(Breakdown(ranks=(SLOW,) * 20, step_s=1.0))
    assert (len(lines), lines[-1]) == (13, "and 8 more ranks")


def test_the_largest_costs_stand_below_the_bars() -> None:
    stream = io.StringIO()
    show_breakdown(make_console(stream=stream, terminal=False), "Where a step goes", STEP, largest_costs(STEP))
    text = stream.getvalue()
    assert "one traced step of 1000 ms" in text
    assert "50 % compute, 75 % of communication hidden" in text
    assert "- rank 0 waits 38 % of the step for rank 1's gradients" in text


def test_a_report_has_the_breakdown_of_the_best_plan_and_survives_json() -> None:
    records = [
        record if record.number != 23 else dataclasses.replace(record, breakdown=STEP) for record in sample.records()
    ]
    report = build_report(sample.info(), records, None, None)
    assert report.breakdown == STEP
    assert report.costs == largest_costs(STEP)
    stream = io.StringIO()
    show_report(make_console(stream=stream, terminal=False), report)
    assert "Where a step goes (emulated): best plan" in stream.getvalue()
    assert from_data(Breakdown, to_data(STEP), "breakdown") == STEP
