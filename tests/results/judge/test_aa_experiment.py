"""The experiment on false alarms, on made-up runs whose answer is known."""

from __future__ import annotations

import random

import pytest

from autotune.results.judge.series import Run, Runs
from tests.benchmarks.aa_experiment import different_jobs, in_a_row, interleaved, outcome, rounds_of, table, upper_bound


def made_up(noise: float, *, job_shift: float = 0.0, jobs: int = 4, rounds: int = 20) -> Runs:
    """Steps of 30 ms with noise of their own per run, and a shift of its own per job."""
    generator = random.Random(1)
    runs = []
    for job in range(jobs):
        shift = 1 + job_shift * job
        for number in range(rounds):
            for name, factor in (("a", 1.0), ("b", 1.0), ("slower", 1.05)):
                step_s = 0.03 * shift * factor * generator.gauss(1, noise)
                runs.append(Run(series=name, job=job, round_number=number, steps_s=(step_s,) * 6))
    return Runs(what="made up", label="emulated", runs=tuple(runs))


def test_rounds_are_the_three_runs_made_side_by_side() -> None:
    rounds = rounds_of(made_up(0.0, job_shift=1.0, jobs=2, rounds=3))
    assert [one.job for one in rounds] == [0, 0, 0, 1, 1, 1]
    assert rounds[0].same_s == (0.03, 0.03)
    assert rounds[-1].slower_s == pytest.approx(0.063)


def test_rounds_in_a_row_are_of_one_job() -> None:
    rounds = rounds_of(made_up(0.0, job_shift=1.0))
    for seed in range(20):
        assert len(set(in_a_row(rounds, 20, random.Random(seed)).before_s)) == 1


def test_sides_of_different_jobs_share_no_job() -> None:
    rounds = rounds_of(made_up(0.0, job_shift=1.0))
    for seed in range(20):
        drawn = different_jobs(rounds, 10, random.Random(seed))
        assert len(set(drawn.before_s)) == len(set(drawn.after_s)) == 1
        assert set(drawn.before_s) != set(drawn.after_s)
        assert drawn.slower_s[0] == pytest.approx(1.05 * drawn.after_s[0])


def test_no_round_is_drawn_twice_and_sides_are_swapped_at_random() -> None:
    rounds = rounds_of(made_up(0.01))
    drawn = interleaved(rounds, 40, random.Random(0))
    assert len(set(drawn.before_s)) == 40
    firsts = {one.same_s[0] for one in rounds}
    assert 8 < sum(step_s in firsts for step_s in drawn.before_s) < 32


def test_quiet_runs_raise_few_alarms_and_find_every_slowdown() -> None:
    found = outcome("quiet", "interleaved", rounds_of(made_up(0.005)), 20, num_pairs=200)
    assert found.false_share <= 0.03
    assert found.false_share < found.false_share_upper < 0.08
    assert (found.found_injected, found.found_real) == (1.0, 1.0)
    assert 0.002 < found.detectable < 0.02


def test_noise_hides_a_slowdown() -> None:
    found = outcome("loud", "interleaved", rounds_of(made_up(0.1)), 20, num_pairs=100)
    assert found.found_injected < 0.5
    assert found.detectable > 0.05


def test_a_shift_between_jobs_is_a_false_alarm_between_jobs_only() -> None:
    rounds = rounds_of(made_up(0.002, job_shift=0.08))
    assert outcome("shifted", "different jobs", rounds, 10, num_pairs=50).false_share > 0.9
    assert outcome("shifted", "interleaved", rounds, 10, num_pairs=50).false_share < 0.1


@pytest.mark.parametrize(
    ("count", "total", "bound"), [(0, 100, 0.0362), (10, 1000, 0.01831), (5, 20, 0.4910), (20, 20, 1.0)]
)
def test_the_bound_is_clopper_and_pearsons(count: int, total: int, bound: float) -> None:
    assert upper_bound(count, total) == pytest.approx(bound, abs=2e-4)


def test_the_table_has_a_row_for_each_outcome() -> None:
    rounds = rounds_of(made_up(0.005))
    rows = table([outcome("quiet", drawn, rounds, 10, num_pairs=5) for drawn in ("interleaved", "different jobs")])
    assert len(rows.splitlines()) == 4
    assert "| quiet | different jobs | 10 | 5 |" in rows
