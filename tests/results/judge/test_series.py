"""Runs as series: warm-up is left out, and many repetitions count as a few blocks."""

from __future__ import annotations

import random

import pytest

from autotune.results.judge.series import MOST_ROUNDS, Run, Runs, in_blocks, steady_step_s
from autotune.workloads.serial import from_data, to_data


def run(series: str, number: int, step_s: float) -> Run:
    return Run(series=series, round_number=number, steps_s=(9.0, step_s, step_s * 1.01, step_s * 0.99, step_s, step_s))


def test_a_run_counts_with_its_median_step_after_warm_up() -> None:
    assert run("a", 0, 0.5).step_s == 0.5
    assert steady_step_s([9.0, 8.0, 0.5, 0.51, 0.49, 0.5]) == pytest.approx(0.5)


def test_each_name_is_a_series_in_the_order_of_the_runs() -> None:
    runs = Runs(what="x", label="emulated", runs=(run("b", 0, 0.2), run("a", 0, 0.1), run("b", 1, 0.3)))
    assert [(one.name, one.rounds_s, one.group) for one in runs.series()] == [
        ("b", (0.2, 0.3), "x"),
        ("a", (0.1,), "x"),
    ]
    assert from_data(Runs, to_data(runs), "file") == runs


def test_few_repetitions_stay_as_they_are() -> None:
    assert in_blocks([3.0, 1.0, 2.0]) == (3.0, 1.0, 2.0)


def test_thousands_of_repetitions_become_blocks_that_keep_the_drift() -> None:
    generator = random.Random(0)
    times = [1 + index / 10_000 + 0.01 * generator.random() for index in range(10_007)]
    blocks = in_blocks(times)
    assert len(blocks) == MOST_ROUNDS
    assert list(blocks) == sorted(blocks)
    assert blocks[0] == pytest.approx(1.02, abs=0.02)
    assert blocks[-1] == pytest.approx(2.0, abs=0.02)
