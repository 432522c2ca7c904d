"""Does emulation repeat? The same plan in two separate jobs must agree within 3 %."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.mpi.launch import autotune

SWEEP = (
    "sweep",
    "--workload",
    "vgg",
    "--cluster",
    "mixed4",
    "--trials",
    "1",
    "--steps",
    "10",
    "--rounds",
    "1",
    "--json",
)


def default_step_s(folder: Path) -> float:
    """The default plan's step: the first trial of a new sweep."""
    done = autotune(4, *SWEEP, cwd=folder)
    assert done.code == 0, done.err
    (path,) = folder.glob("results/data/*/*/records.jsonl")
    return median(json.loads(path.read_text().splitlines()[0])["steps_s"])


@pytest.mark.timeout(300)
def test_the_same_plan_in_two_jobs_agrees_within_3_percent(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = benchmark.pedantic(default_step_s, args=(tmp_path / "a",), rounds=1)
    second = default_step_s(tmp_path / "b")
    benchmark.extra_info["step_s"] = [first, second]
    assert abs(first / second - 1) < 0.03
