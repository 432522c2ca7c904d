"""Scheduled training ends with the parameters of plain training, on real ranks; `nox -s equality` runs all cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mpi.launch import mpirun

PROGRAM = Path(__file__).parent / "programs" / "equal_training.py"


@pytest.mark.mpi
def test_parameters_are_those_of_one_process(tmp_path: Path) -> None:
    done = mpirun(3, str(PROGRAM), "6", "float64", "quick", cwd=tmp_path)
    assert done.code == 0, done.err
    cases = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    assert len({case["configuration"] for case in cases}) == 7
    assert len(cases) == 14
    assert not [case for case in cases if case["error"] > 1e-10]
