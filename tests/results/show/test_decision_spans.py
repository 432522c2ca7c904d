"""Decisions on a timeline, through a trace file and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.profilers.perfetto import read_trace, write_trace
from autotune.profilers.timeline import Span, Timeline
from autotune.results.show.decision_spans import TRACK, with_decisions
from autotune.results.store.decision import COMPUTE, LOOK, NETWORK, Decision, in_words
from autotune.workloads.plan import BatchPlan, CommPlan, Plan

EVEN, UNEVEN = (Plan(batch=BatchPlan(samples=samples)) for samples in ((8, 8), (12, 4)))
DECISIONS = (
    Decision(step=5, plan=UNEVEN, kind=COMPUTE, ranks=(1,), predicted_gain=0.2, reason="rank 1 is slow", at_s=1.0),
    Decision(step=9, plan=UNEVEN, kind=LOOK, reason="steps take longer", switches=False, at_s=2.0),
    Decision(step=10, plan=EVEN, kind=NETWORK, reason="host1's link carries 0.20 times what it did", at_s=2.5),
)
STEP = Timeline(
    spans=(Span(rank=1, track="compute", kind="forward", op="forward", start_s=4.0, end_s=5.0),), clock_error_s=1e-4
)


def test_each_decision_lasts_until_the_next_on_rank_0() -> None:
    timeline = with_decisions(STEP, DECISIONS)
    found = [span for span in timeline.spans if span.track == TRACK]
    assert [(span.rank, span.kind, span.start_s, span.end_s) for span in found] == [
        (0, COMPUTE, 1.0, 2.0),
        (0, LOOK, 2.0, 2.5),
        (0, NETWORK, 2.5, 5.0),
    ]
    assert found[2].op.startswith("step 10: network: host1's link carries 0.20 times what it did; now ")
    assert [counter.points for counter in timeline.counters] == [
        ((1.0, 12.0), (2.0, 12.0), (2.5, 8.0)),
        ((1.0, 4.0), (2.0, 4.0), (2.5, 8.0)),
    ]
    assert timeline.clock_error_s == STEP.clock_error_s


def test_a_trace_file_holds_them(tmp_path: Path) -> None:
    timeline = with_decisions(STEP, DECISIONS)
    write_trace(timeline, tmp_path / "trace.json")
    assert read_trace(tmp_path / "trace.json") == timeline


def test_without_decisions_nothing_is_added() -> None:
    assert with_decisions(STEP, ()) is STEP


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (DECISIONS[0], "compute: rank 1 is slow; now samples 12/4  bucket 25 MiB  gloo  none, expected to save 20 %"),
        (DECISIONS[1], "look: steps take longer; timing the links"),
        (
            Decision(step=1, plan=EVEN, kind=NETWORK, reason="all links carry 0.25", switches=False),
            "network: all links carry 0.25",
        ),
    ],
)
def test_in_words(decision: Decision, words: str) -> None:
    assert in_words(decision) == words


def test_owners_are_shown() -> None:
    owned = Plan(batch=BatchPlan(samples=(8, 8)), comm=CommPlan(collective="shards", shares=(0.75, 0.25)))
    assert "shards owned 75/25 %" in in_words(Decision(step=1, plan=owned, kind=NETWORK, reason=""))
