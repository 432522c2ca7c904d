"""What a person sees while a model trains: how far, by which plan, and every decision with its reason."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from autotune.results.show.training_progress import TrainingProgress
from autotune.results.store.decision import COMPUTE, NETWORK, Decision
from autotune.workloads.plan import BatchPlan, Plan

EVEN = Plan(batch=BatchPlan(samples=(32, 32)))
UNEVEN = replace(EVEN, batch=BatchPlan(samples=(40, 24)))


def watched(*, terminal: bool) -> str:
    """Twelve steps of two seconds; samples move after the fourth."""
    now_s = [0.0]
    console = Console(file=io.StringIO(), force_terminal=terminal, width=160, color_system=None)
    with TrainingProgress(console, 12, clock=lambda: now_s[0]) as progress:
        progress.phase("comparing")
        progress.training_started(EVEN)
        for step in range(1, 13):
            now_s[0] += 2.0
            progress.step_done(step)
            if step == 4:
                progress.decided(
                    Decision(
                        step=5,
                        plan=EVEN,
                        kind=NETWORK,
                        reason="all links carry 0.1 times what they did",
                        switches=False,
                    )
                )
                progress.decided(
                    Decision(step=5, plan=UNEVEN, kind=COMPUTE, reason="rank 1 is slow", predicted_gain=0.2)
                )
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_log_says_now_and_then_how_far_it_is_and_by_which_plan() -> None:
    lines = watched(terminal=False).splitlines()
    assert lines.pop(0) == "comparing"
    assert lines[0].startswith("step 0/12  samples 32/32")
    assert lines[1].startswith("step 3/12  2000 ms/step  32.0 samples/s  samples 32/32")
    assert lines[2] == "step 5/12: network: all links carry 0.1 times what they did"
    assert lines[3].startswith("step 5/12: compute: rank 1 is slow; now samples 40/24")
    assert lines[4].startswith("step 6/12  2000 ms/step  32.0 samples/s  samples 40/24")
    assert len(lines) == 7


def test_a_terminal_shows_the_plan_that_holds_and_keeps_the_decisions() -> None:
    shown = watched(terminal=True)
    assert "step 12/12  2000 ms/step  32.0 samples/s  samples 40/24" in shown
    assert shown.index("rank 1 is slow; now samples 40/24") < shown.index("step 5/12  2000 ms/step")


def test_what_is_drawn_anew_ends_its_line_lest_mpirun_keeps_it() -> None:
    """Each drawing begins with the way back to its first line, which is passed on with the line after it."""
    assert "none\n\r\x1b[2K\x1b[1A\x1b[2Kstep 1/12" in watched(terminal=True)


def test_nothing_is_lost_where_training_never_begins() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    with TrainingProgress(console, 12):
        pass
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""
