"""Pipelines on real ranks: gradients of the unsplit model on every placement, and no rank left waiting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mpi.launch import mpirun

PROGRAM = Path(__file__).parent / "programs" / "pipelines.py"
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_pipelined_gradients_are_those_of_the_unsplit_model(num_ranks: int, tmp_path: Path) -> None:
    done = mpirun(num_ranks, str(PROGRAM), cwd=tmp_path)
    assert done.code == 0, done.err
    cases = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    assert {case["case"].split()[0] for case in cases} == {"V", "X", "K", "M", "NN", "torch"}
    assert len(cases) == 2 * 6 + 1 + 2
    wrong = [case for case in cases if not case["error"] <= TOLERANCE[case["case"].split()[-1]]]
    assert not wrong
    assert all(case["loss"] > 0 for case in cases)


@pytest.mark.mpi
def test_a_failing_rank_ends_the_others(tmp_path: Path) -> None:
    done = mpirun(3, str(PROGRAM), "fails", cwd=tmp_path)
    assert done.code == 0, done.err
    assert json.loads(done.out)["outcomes"] == ["PeerLostError", "ValueError", "PeerLostError"]
