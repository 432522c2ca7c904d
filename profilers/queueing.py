"""Queueing of ready gradients: until they are ready on all ranks, and then until they are scheduled.

A partition that is ready on one rank waits until it is ready on all ranks, and then for credit or behind partitions of higher
priority. The first delay is due to a straggler, the second to the schedule.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from autotune.profilers.timeline import Span, Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class Queueing:
    """Means over all partitions and ranks of a step."""

    num_parts: int = 0
    for_ranks_s: float = 0.0
    """From ready on this rank to ready on all."""
    for_turn_s: float = 0.0
    """From ready on all ranks to sent."""


def queueing(timeline: Timeline) -> Queueing:
    """Of the partitions in a timeline of all ranks; one without a queue span was sent when it was ready."""
    ready: dict[str, dict[int, float]] = defaultdict(dict)
    sent: dict[str, dict[int, float]] = defaultdict(dict)
    for span in timeline.spans:
        if span.track == "comm":
            _note(span, ready[span.op], sent[span.op])
    waits = [
        (last_s - ready_s, max(sent[op][rank] - max(last_s, ready_s), 0.0))
        for op, ranks in ready.items()
        if sent[op]
        for last_s in [max(ranks.values())]
        for rank, ready_s in ranks.items()
        if rank in sent[op]
    ]
    if not waits:
        return Queueing()
    for_ranks, for_turn = (sum(each) / len(waits) for each in zip(*waits, strict=True))
    return Queueing(num_parts=len([op for op in sent if sent[op]]), for_ranks_s=for_ranks, for_turn_s=for_turn)


def _note(span: Span, ready: dict[int, float], sent: dict[int, float]) -> None:
    if span.kind == "queue":
        ready[span.rank] = span.start_s
    else:
        ready.setdefault(span.rank, span.start_s)
        sent[span.rank] = span.start_s
