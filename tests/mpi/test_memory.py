"""Where memory ends on one rank: the trial is infeasible on all, with the rank named, and the job goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mpi.launch import mpirun

PROGRAM = Path(__file__).parent / "programs" / "memory_ends.py"
REASON = "rank 1: OutOfMemoryError: tried to allocate 8 GiB"


@pytest.mark.mpi
def test_out_of_memory_on_one_rank(tmp_path: Path) -> None:
    """With a local step no group is opened for it; without one the step itself ends on all ranks. A comparison then builds
    the models of ddp, bucketed, scheduled and pipelined plans one by one over the same groups.
    """
    done = mpirun(2, str(PROGRAM), str(tmp_path), cwd=tmp_path)
    assert done.code == 0, done.err
    found = {(line := json.loads(text)).pop("name"): line for text in done.out.splitlines() if text.startswith("{")}
    for how, num_opened in (("local step", 0), ("in the step", 1)):
        assert found[f"{how}: fits"] == {"state": "complete", "reason": "", "opened": 1}
        assert found[f"{how}: ends"] == {"state": "infeasible", "reason": REASON, "opened": num_opened}
        assert found[f"{how}: fits again"] == {"state": "complete", "reason": "", "opened": 1}
        assert found[f"{how}: compared"] == {"rounds": [2, 2, 2, 2]}
