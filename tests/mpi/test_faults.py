"""An exception on any rank at any place: no hang, one message with the rank and the cause, and the sweep continues.

With the slow ones, 23 faults: 15 within trials, on one rank after another; 4 at the start and 4 between trials, one per rank.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mpi.launch import Finished, autotune, mpirun

PROGRAMS = Path(__file__).parent / "programs"
SWEEP = ("sweep", "--workload", "faulty:factory", "--trials", "6", "--steps", "3", "--rounds", "2", "--timeout", "20")
PROMPT_S = 10
START_S = 30
"""Starting four ranks and importing torch on a busy machine."""


def sweep(place: str, tmp_path: Path, *more: str, rank: int = 2) -> Finished:
    environment = {"PYTHONPATH": f"{PROGRAMS}:{PROGRAMS.parents[2]}"}
    options = ("--set", f"place={place}", "--set", f"rank={rank}", "--cluster", "this-machine", "--json", *more)
    return autotune(4, *SWEEP, *options, cwd=tmp_path, env=environment, timeout_s=110)


def records(tmp_path: Path) -> list[dict[str, object]]:
    (path,) = tmp_path.glob("results/data/*/*/records.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


SLOW = pytest.mark.slow


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("place", ["step", "backward", "model"])
def test_a_trial_that_fails_on_one_rank_fails_on_all_and_the_sweep_goes_on(place: str, tmp_path: Path) -> None:
    done = sweep(place, tmp_path)
    assert done.code == 0, done.err
    assert not done.errors
    rows = records(tmp_path)
    failed = [row for row in rows if row["state"] == "failed"]
    assert sum(row["role"] == "search" for row in rows) == 6
    assert [row["number"] for row in failed] == [1, 3, 5]
    for row in failed:
        turn = (row["number"] + 1) % 8
        assert row["reason"] == f"rank {turn // 2}: ValueError: on purpose, {place}"
        assert row["duration_s"] < PROMPT_S
    assert [row["state"] for row in rows[:1]] == ["complete"]


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("rank", range(4))
def test_a_rank_that_fails_at_the_start_ends_the_job_with_one_message(rank: int, tmp_path: Path) -> None:
    done = sweep("start", tmp_path, rank=rank)
    assert done.code == 1
    assert done.errors == [f"autotune: error: rank {rank}: ValueError: on purpose, start"]
    assert done.seconds < START_S + PROMPT_S


@pytest.mark.mpi
@pytest.mark.parametrize("rank", [3, *(pytest.param(rank, marks=SLOW) for rank in (0, 1, 2))])
def test_a_rank_that_fails_between_trials_ends_the_job_with_one_message(rank: int, tmp_path: Path) -> None:
    program = PROGRAMS / "fails_between_trials.py"
    arguments = ("sweep", "--workload", "mlp-tiny", "--cluster", "this-machine", "--trials", "3", "--steps", "2")
    done = mpirun(4, str(program), *arguments, cwd=tmp_path, env={"FAIL_RANK": str(rank)})
    assert done.code == 1
    assert done.errors == [f"autotune: error: rank {rank}: OSError: [Errno 28] No space left on device"]
    assert done.seconds < START_S + PROMPT_S
    assert len(records(tmp_path)) == 2


@pytest.mark.mpi
@pytest.mark.slow
def test_a_rank_that_hangs_is_named_and_its_trial_recorded(tmp_path: Path) -> None:
    done = sweep("hang", tmp_path, "--timeout", "4")
    assert done.code == 1
    assert done.errors == ["autotune: error: rank 2 did not answer in time: it hangs or has died"]
    assert records(tmp_path)[-1]["state"] == "failed"
    assert "rank 2" in str(records(tmp_path)[-1]["reason"])
