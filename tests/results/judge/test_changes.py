"""What has changed between two sides: verdicts, which series are compared, and the notes below the table."""

from __future__ import annotations

import random

import pytest

from autotune.results.judge.compare import (
    ALARM_ROUNDS,
    BETTER,
    JOB_DRIFT,
    NO_DIFFERENCE,
    TOO_FEW,
    WORSE,
    Changes,
    compare_sides,
    paired_change,
    unpaired_change,
)
from autotune.results.judge.series import Series
from autotune.results.judge.series_file import Side
from autotune.results.judge.stats import speedup
from autotune.workloads.errors import SpecError


def series(  # noqa: PLR0913 - all but two have defaults
    name: str, step_s: float, *, seed: int = 0, rounds: int = 20, noise: float = 0.005, group: str = ""
) -> Series:
    generator = random.Random(f"{name} {seed}")
    return Series(name=name, rounds_s=tuple(step_s * generator.gauss(1, noise) for _ in range(rounds)), group=group)


def side(source: str, *found: Series, **environment: str) -> Side:
    return Side(source=source, series=found, environment=environment)


def compared(before_s: float, after_s: float, *, rounds: int = 20) -> Changes:
    return compare_sides(
        side("old", series("x", before_s, seed=1, rounds=rounds)),
        side("new", series("x", after_s, seed=2, rounds=rounds)),
    )


@pytest.mark.parametrize(
    ("after_s", "verdict"), [(1.1, WORSE), (0.9, BETTER), (1.0, NO_DIFFERENCE), (1.04, NO_DIFFERENCE)]
)
def test_a_verdict_is_better_worse_or_no_difference(after_s: float, verdict: str) -> None:
    (row,) = compared(1.0, after_s).rows
    assert row.verdict == verdict
    assert row.ratio.value == pytest.approx(1 / after_s, rel=0.01)
    assert (row.before_s, row.after_s) == (pytest.approx(1.0, rel=0.01), pytest.approx(after_s, rel=0.01))


def test_only_worse_is_a_regression() -> None:
    assert [row.name for row in compared(1.0, 1.1).regressions] == ["x"]
    assert not compared(1.0, 0.9).regressions
    assert not compared(1.0, 1.0).regressions


def test_too_few_rounds_raise_no_alarm_and_claim_no_power() -> None:
    (row,) = compared(1.0, 2.0, rounds=ALARM_ROUNDS - 1).rows
    assert (row.verdict, row.detectable) == (TOO_FEW, None)
    (row,) = compared(1.0, 2.0, rounds=ALARM_ROUNDS).rows
    assert row.verdict == WORSE


def test_too_few_rounds_are_reported() -> None:
    assert any(f"needs {ALARM_ROUNDS} rounds" in note for note in compared(1.0, 2.0, rounds=1).notes)
    assert not any("rounds" in note for note in compared(1.0, 2.0).notes)


def test_what_would_be_found_is_about_the_noise() -> None:
    quiet = unpaired_change(series("x", 1.0, seed=1), series("x", 1.0, seed=2)).detectable
    loud = unpaired_change(series("x", 1.0, seed=1, noise=0.05), series("x", 1.0, seed=2, noise=0.05)).detectable
    assert quiet is not None
    assert loud is not None
    assert JOB_DRIFT < quiet < JOB_DRIFT + 0.03 < loud


def test_rounds_interleaved_forgive_a_drift_of_the_machine() -> None:
    drift = [1 + 0.3 * random.Random(3).random() for _ in range(20)]
    before, after = series("x", 1.0, seed=1), series("x", 1.05, seed=2)
    before = Series(name="x", rounds_s=tuple(a * b for a, b in zip(before.rounds_s, drift, strict=True)))
    after = Series(name="x", rounds_s=tuple(a * b for a, b in zip(after.rounds_s, drift, strict=True)))
    assert paired_change(before, after).verdict == WORSE


def test_a_false_alarm_at_95_percent_is_none_here() -> None:
    """Rounds that a 95 % interval calls different and a 99.5 % interval does not."""
    for seed in range(200):
        before, after = series("x", 1.0, seed=seed, rounds=12), series("x", 1.0, seed=seed + 1000, rounds=12)
        if speedup(before.rounds_s, after.rounds_s).verdict == "slower":
            assert paired_change(before, after).verdict == NO_DIFFERENCE
            return
    pytest.fail("no false alarm at 95 % in 200 pairs")


# --- who is compared with whom -----------------------------------------------------------------------------------------


def test_the_same_names_are_compared_and_the_others_are_named() -> None:
    found = compare_sides(
        side("old", series("a", 1.0), series("b", 1.0)), side("new", series("b", 1.0), series("c", 1.0))
    )
    assert [row.name for row in found.rows] == ["b"]
    assert "Only in old: a." in found.notes
    assert "Only in new: c." in found.notes


def test_one_group_on_each_side_is_compared_whatever_it_is_called_and_that_is_reported() -> None:
    old, new = series("a", 1.0, group="vgg on mixed4"), series("a", 1.0, group="vgg on uniform4")
    found = compare_sides(side("old", old), side("new", new))
    assert [row.name for row in found.rows] == ["a"]
    assert "Not the same thing: vgg on mixed4 before, vgg on uniform4 after." in found.notes


def test_several_groups_are_compared_group_by_group() -> None:
    old = [series("a", step_s, group=group) for group, step_s in (("m", 1.0), ("n", 2.0))]
    new = [series("a", step_s, group=group) for group, step_s in (("n", 2.2), ("m", 1.0))]
    found = compare_sides(side("old", *old), side("new", *new))
    assert [(row.group, row.verdict) for row in found.rows] == [("n", WORSE), ("m", NO_DIFFERENCE)]


def test_nothing_in_common_is_refused_with_the_names() -> None:
    many = [series(f"test {number}", 1.0) for number in range(8)]
    with pytest.raises(SpecError, match=r"'old' \(best plan\).*'new' \(test 0, .*, test 4, 3 more\)"):
        compare_sides(side("old", series("best plan", 1.0)), side("new", *many))


# --- notes ----------------------------------------------------------------------------------------------------------


def test_sides_from_different_jobs_say_so_first() -> None:
    found = compared(1.0, 1.0)
    assert not found.in_one_job
    assert found.notes[0].startswith("Measured in different jobs, which differ by some percent for no reason")


def test_what_else_changed_is_reported() -> None:
    old, new = side("old", series("a", 1.0), torch="2.12", python="3.11"), side("new", series("a", 1.0), torch="2.13")
    assert "Also changed: torch 2.12 -> 2.13." in compare_sides(old, new).notes
    assert len(compare_sides(old, old).notes) == 1
