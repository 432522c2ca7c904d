"""Plans that leave ranks out train as all ranks do: the same losses, in every communication configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mpi.launch import mpirun

PROGRAM = Path(__file__).parent / "programs" / "left_out.py"


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_losses_are_those_of_all_ranks(tmp_path: Path) -> None:
    """Rank 0 out, all but the last out, all but the first out; a comparison in which rank 0 waits for others."""
    done = mpirun(3, str(PROGRAM), cwd=tmp_path)
    assert done.code == 0, done.err
    *cases, compared = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    assert len(cases) == 3 * 6
    assert [case for case in cases if not case["error"] <= 1e-10] == []
    assert compared["rounds"] == [3, 3]
