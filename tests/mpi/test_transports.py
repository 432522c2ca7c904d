"""One contract for every transport and every collective that it carries, plain and under emulated links."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mpi.launch import mpirun

PROGRAM = Path(__file__).parent / "programs" / "transports.py"


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_every_transport_keeps_the_contract(num_ranks: int, tmp_path: Path) -> None:
    done = mpirun(num_ranks, str(PROGRAM), cwd=tmp_path)
    assert done.code == 0, done.err
    cases = [json.loads(line) for line in done.out.splitlines()]
    assert len(cases) == 2 * (5 + 6 * (4 * 4 + 3)) + (6 if num_ranks > 1 else 0)
    assert not [case["case"] for case in cases if not case["ok"]]
