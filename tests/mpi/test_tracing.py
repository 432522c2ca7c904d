"""A traced step accounts for all of its time, on every built-in workload, reducer and transport."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mpi.launch import ROOT, mpirun

PROGRAM = str(ROOT / "tests" / "mpi" / "programs" / "tracing.py")


@pytest.mark.mpi
@pytest.mark.slow
def test_traced_steps_account_for_all_of_their_time(tmp_path: Path) -> None:
    done = mpirun(2, PROGRAM, cwd=tmp_path)
    assert done.code == 0, done.err
    checks = [json.loads(line) for line in done.out.splitlines()]
    assert len(checks) == 2 * (5 + 2) * 3 + 2
    assert [line for line in checks if not line["ok"]] == []
