"""Where a step's time went, as text: one bar per rank, and the largest costs in words. ASCII, for any terminal and log."""

from __future__ import annotations

from autotune.profilers.activity import Activity
from autotune.profilers.breakdown import Breakdown, RankBreakdown
from autotune.profilers.queueing import Queueing
from autotune.results.text.numbers import format_ms, format_percent

BAR_WIDTH = 44
LEAST_WAIT_S = 0.0005
MOST_RANKS = 12
MARKS = {
    Activity.COMPUTE: "#",
    Activity.DATA: "d",
    Activity.COMMUNICATION: "=",
    Activity.STRAGGLER: ".",
    Activity.OTHER: " ",
}
LEGEND = "# compute   = communication that nothing hides   . waiting for another rank   d loading data"


def bars(breakdown: Breakdown) -> list[str]:
    """A line per rank: its bar as long as the step, its shares, and how much of its communication is hidden."""
    lines = [_line(rank, breakdown.step_s) for rank in breakdown.ranks[:MOST_RANKS]]
    left_out = len(breakdown.ranks) - MOST_RANKS
    return lines + ([f"and {left_out} more ranks"] if left_out > 0 else [])


def queue_text(queueing: Queueing) -> str:
    """How long gradients waited to be sent, and why; empty where they did not."""
    waited_s = queueing.for_ranks_s + queueing.for_turn_s
    if waited_s < LEAST_WAIT_S:
        return ""
    return (
        f"gradients in {queueing.num_parts} messages wait {format_ms(waited_s)} ms each to be sent: "
        f"{format_ms(queueing.for_ranks_s)} ms until they are ready on every rank, {format_ms(queueing.for_turn_s)} ms behind other messages"
    )


def _line(rank: RankBreakdown, step_s: float) -> str:
    hidden = rank.overlap_share
    overlap = "" if hidden is None else f", {format_percent(hidden)} of communication hidden"
    compute = format_percent(rank.shares()[Activity.COMPUTE])
    return f"rank {rank.rank:<3}|{bar(rank, step_s)}| {format_ms(rank.wall_s)} ms, {compute} compute{overlap}"


def bar(rank: RankBreakdown, step_s: float) -> str:
    """Marks in proportion to the parts; rounding is carried on, so the bar is as long as the rank's step."""
    text, reached_s = "", 0.0
    for activity, share in rank.shares().items():
        reached_s += share * rank.wall_s
        until = round(BAR_WIDTH * reached_s / step_s) if step_s > 0 else 0
        text += MARKS[activity] * (until - len(text))
    return text.ljust(BAR_WIDTH)
