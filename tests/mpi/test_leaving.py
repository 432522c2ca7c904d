"""A rank that leaves in any way ends the job: no rank hangs, and one message names the rank and the cause."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.mpi.launch import mpirun

PROGRAM = Path(__file__).parent / "programs" / "leaves_early.py"
MOST_S = 5.0
CAUSES = {
    "exception": r"rank {rank}: ValueError: boom",
    "exit": r"rank {rank} has ended by sys\.exit\(3\)",
    "os-exit": r"rank {rank} is gone without a farewell: was it killed\?",
    "kill": r"rank {rank} is gone without a farewell: was it killed\?",
}
SLOW = pytest.mark.slow
CASES = [(how, rank) for how in CAUSES for rank in range(3)]
QUICK = [("exit", 1), ("kill", 0)]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("how", "rank"), [*QUICK, *(pytest.param(*case, marks=SLOW) for case in CASES if case not in QUICK)]
)
def test_a_rank_that_leaves_a_script_ends_the_job_with_one_message(how: str, rank: int, tmp_path: Path) -> None:
    done = mpirun(3, str(PROGRAM), how, str(rank), cwd=tmp_path)
    ended = time.time()
    assert done.code != 0
    messages = re.findall(r"autotune: error: (.*)", done.err)
    assert len(messages) == 1, done.err
    assert re.match(CAUSES[how].format(rank=rank), messages[0])
    (left,) = re.findall(r"leaving at (\d+\.\d+)", done.err)
    assert ended - float(left) < MOST_S


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("rank", range(3))
def test_a_rank_that_returns_early_ends_the_job(rank: int, tmp_path: Path) -> None:
    done = mpirun(3, str(PROGRAM), "return", str(rank), cwd=tmp_path)
    assert done.code != 0
    assert f"rank {rank} has ended its" in done.err


@pytest.mark.mpi
def test_ranks_that_leave_together_leave_in_peace(tmp_path: Path) -> None:
    done = mpirun(3, str(PROGRAM), "none", "0", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "autotune" not in done.err
