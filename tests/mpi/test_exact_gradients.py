"""Uneven batches are exact: the proof that everything else rests on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mpi.launch import mpirun

PROGRAM = Path(__file__).parent / "programs" / "exact_gradients.py"
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_any_split_gives_the_gradient_of_the_whole_batch(num_ranks: int, tmp_path: Path) -> None:
    done = mpirun(num_ranks, str(PROGRAM), cwd=tmp_path)
    assert done.code == 0, done.err
    cases = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    assert {case["workload"] for case in cases} >= {"gpt-tiny", "digits"}
    assert len(cases) == 3 * 2 * (5 if num_ranks == 1 else 7)
    wrong = [case for case in cases if not case["error"] <= TOLERANCE[case["dtype"]]]
    assert not wrong
    if num_ranks > 1:
        assert any(0 in case["samples"] for case in cases)


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_any_split_gives_the_gradient_of_the_whole_batch_with_synchronised_norms(
    num_ranks: int, tmp_path: Path
) -> None:
    done = mpirun(num_ranks, str(PROGRAM), "norms", cwd=tmp_path)
    assert done.code == 0, done.err
    cases = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    assert {(case["reducer"], case["transport"]) for case in cases} == {
        ("bucketed", "gloo"),
        ("ddp", "gloo"),
        ("bucketed", "mpi"),
    }
    assert [case for case in cases if not case["error"] <= 1e-10] == []


@pytest.mark.mpi
@pytest.mark.slow
def test_digits_reaches_the_same_accuracy_with_any_split(tmp_path: Path) -> None:
    done = mpirun(3, str(PROGRAM.parent / "digits_accuracy.py"), cwd=tmp_path)
    assert done.code == 0, done.err
    reached = {(case := json.loads(line))["name"]: case["accuracy"] for line in done.out.splitlines()}
    assert len(reached) == 3
    assert min(reached.values()) > 0.95
    assert max(reached.values()) - min(reached.values()) <= 0.01


@pytest.mark.mpi
@pytest.mark.slow
def test_digits_reaches_the_same_accuracy_with_any_codec(tmp_path: Path) -> None:
    done = mpirun(3, str(PROGRAM.parent / "digits_accuracy.py"), "codecs", cwd=tmp_path)
    assert done.code == 0, done.err
    reached = {(case := json.loads(line))["name"]: case["accuracy"] for line in done.out.splitlines()}
    assert len(reached) == 7
    plain = reached["none"]
    assert plain > 0.95
    assert {name: value for name, value in reached.items() if abs(value - plain) > 0.01} == {}
