"""The table of changes in a terminal."""

from __future__ import annotations

import io

import pytest

from autotune.results.judge.compare import Changes, compare_sides, paired_change
from autotune.results.judge.stats import ALARM_CONFIDENCE
from autotune.results.show.compare_console import show_changes
from autotune.results.show.report_console import make_console
from autotune.results.text.numbers import format_seconds
from tests.results.judge.test_changes import series, side


def shown(changes: Changes, width: int = 100) -> str:
    stream = io.StringIO()
    show_changes(make_console(stream=stream, terminal=False, width=width), changes)
    return stream.getvalue()


def test_both_sides_the_ratio_its_interval_and_the_verdict_are_shown() -> None:
    changes = compare_sides(
        side("old.json", series("best plan", 0.2, seed=1), series("split", 1.5e-5, seed=1)),
        side("new.json", series("best plan", 0.22, seed=2), series("split", 1.5e-5, seed=2)),
    )
    text = shown(changes)
    assert text.startswith("old.json -> new.json: from different jobs, 99.5 % intervals\n")
    best = next(line for line in text.splitlines() if line.startswith("best plan"))
    assert "200 ms" in best
    assert "220 ms" in best
    assert "worse" in best
    assert "15.0 us" in text
    assert "1 worse (of 2 compared)" in text
    assert "which differ by some percent for no reason" in text
    assert all(len(line) <= 100 for line in text.splitlines() if "jobs" not in line)


def test_no_difference_is_said_in_words() -> None:
    changes = compare_sides(side("a", series("x", 1.0, seed=1)), side("b", series("x", 1.0, seed=2)))
    assert "no difference beyond noise (of 1 compared)" in shown(changes)


def test_a_comparison_in_one_job_says_so() -> None:
    row = paired_change(series("x", 1.0, seed=1), series("x", 0.9, seed=2))
    changes = Changes(
        before="a", after="b", in_one_job=True, confidence=ALARM_CONFIDENCE, rows=(row,), notes=("a note",)
    )
    text = shown(changes)
    assert "a -> b: interleaved within one job" in text
    assert "1 better (of 1 compared)" in text
    assert text.endswith("a note\n")


def test_several_groups_are_named_and_a_narrow_terminal_drops_what_it_can_spare() -> None:
    both = [series("best plan", 0.2, group=group) for group in ("vgg on mixed4", "gpt on mixed4")]
    text = shown(compare_sides(side("a", *both), side("b", *both)), width=80)
    assert "vgg on mixed4: best plan" in text
    assert "no difference" in text
    assert "before" not in text


def test_one_round_shows_no_power() -> None:
    text = shown(compare_sides(side("a", series("x", 1.0, rounds=1)), side("b", series("x", 2.0, rounds=1))))
    assert "too few rounds for a verdict (of 1 compared)" in text
    assert "no difference" not in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.2, "1.20 s"), (0.2134, "213 ms"), (0.99999, "1.00 s"), (1.46e-5, "14.6 us"), (3.2e-8, "32.0 ns")],
)
def test_a_time_has_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
