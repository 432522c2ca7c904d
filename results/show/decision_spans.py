"""Decisions on a timeline: which plan held when and why, and every rank's samples over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.profilers.timeline import Counter, Span, Timeline
from autotune.results.store.decision import Decision, in_words

TRACK = "decisions"


def with_decisions(timeline: Timeline, decisions: Sequence[Decision]) -> Timeline:
    """The timeline of rank 0's clock, with a span for each decision until the next, and a counter of samples per rank."""
    if not decisions:
        return timeline
    end_s = max((span.end_s for span in timeline.spans), default=decisions[-1].at_s)
    ends_s = [*(later.at_s for later in decisions[1:]), max(end_s, decisions[-1].at_s)]
    spans = [
        Span(
            rank=0,
            track=TRACK,
            kind=decision.kind,
            op=f"step {decision.step}: {in_words(decision)}",
            start_s=decision.at_s,
            end_s=until_s,
        )
        for decision, until_s in zip(decisions, ends_s, strict=True)
    ]
    counters = [
        Counter(
            rank=rank,
            name="samples",
            unit="samples",
            points=tuple((decision.at_s, float(decision.plan.batch.samples[rank])) for decision in decisions),
        )
        for rank in range(len(decisions[0].plan.batch.samples))
    ]
    added = Timeline(spans=tuple(spans), counters=tuple(counters))
    return replace(Timeline.merge([timeline, added]), clock_error_s=timeline.clock_error_s)
