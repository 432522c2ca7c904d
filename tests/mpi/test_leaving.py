"""A rank that leaves in any way ends the job: no rank hangs, and one message names the rank and the cause."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mpi.launch import Finished, mpirun, torchrun

PROGRAMS = Path(__file__).parent / "programs"
PROGRAM = PROGRAMS / "leaves_early.py"
MOST_S = 5.0
CAUSES = {
    "exception": r"rank {rank}: ValueError: boom",
    "exit": r"rank {rank} has ended by sys\.exit\(3\)",
    "exit-0": r"rank {rank} has ended by sys\.exit\(\)",
    "os-exit-0": r"rank {rank} is gone without a farewell: was it killed\?",
    "os-exit": r"rank {rank} is gone without a farewell: was it killed\?",
    "kill": r"rank {rank} is gone without a farewell: was it killed\?",
}
SLOW = pytest.mark.slow
CASES = [(how, rank) for how in ("exception", "exit", "os-exit", "kill") for rank in range(3)]
QUICK = [("exit", 1), ("kill", 0)]


def noticed(done: Finished, cause: str, ended: float, within_s: float = MOST_S) -> None:
    """The job has ended soon after the rank had left, with one message that names rank and cause."""
    assert done.code != 0
    messages = re.findall(r"autotune: error: (.*)", done.err)
    assert len(messages) == 1, done.err
    assert re.match(cause, messages[0]), messages
    (left,) = re.findall(r"leaving at (\d+\.\d+)", done.err)
    assert ended - float(left) < within_s


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("how", "rank"), [*QUICK, *(pytest.param(*case, marks=SLOW) for case in CASES if case not in QUICK)]
)
def test_a_rank_that_leaves_a_script_ends_the_job_with_one_message(how: str, rank: int, tmp_path: Path) -> None:
    noticed(mpirun(3, str(PROGRAM), how, str(rank), cwd=tmp_path), CAUSES[how].format(rank=rank), time.time())


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


# --- jobs ------------------------------------------------------------------------------------------------------------------

JOBS = {
    "sweep": ("--trials", "3", "--steps", "3", "--rounds", "2", "--timeout", "20"),
    "train": ("--steps", "30", "--timeout", "20"),
    "profile": ("--timeout", "20"),
}
PLACES = [
    *(
        ("sweep", place, how, rank)
        for place in ("factory", "step")
        for how in ("exit-0", "os-exit-0")
        for rank in (0, 2)
    ),
    *(("sweep", "import", how, 0) for how in ("exit", "kill")),
    *(("sweep", place, "exit", 1) for place in ("capture", "model", "data")),
    ("train", "data", "exit-0", 0),
    ("train", "step", "kill", 2),
    ("profile", "capture", "exit-0", 0),
    ("profile", "step", "kill", 1),
]
QUICK_PLACES = [("sweep", "data", "exit", 1)]


def job(
    case: tuple[str, str, str, int], cwd: Path, *more: str, limit: str = "", launch: Callable[..., Finished] = mpirun
) -> Finished:
    """A job of three ranks, one of which leaves."""
    command, place, how, rank = case
    options = [f"place={place}", f"how={how}", f"rank={rank}"]
    environment = {"PYTHONPATH": f"{PROGRAMS}:{PROGRAMS.parents[2]}", "AUTOTUNE_SETUP_LIMIT": limit}
    if place == "import":
        options, environment["LEAVE_AT_IMPORT"] = [], f"{how} {rank}"
    setting = [part for option in options for part in ("--set", option)]
    workload = ("--workload", "leaving:factory", *setting, "--cluster", "this-machine")
    return launch(3, "-m", "autotune", command, *workload, *JOBS[command], *more, cwd=cwd, env=environment)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("command", "place", "how", "rank"),
    [*QUICK_PLACES, *(pytest.param(*case, marks=SLOW) for case in PLACES if case not in QUICK_PLACES)],
)
def test_a_rank_that_leaves_a_job_ends_it_with_one_message(
    command: str, place: str, how: str, rank: int, tmp_path: Path
) -> None:
    cause = CAUSES["kill" if how == "os-exit-0" else how].format(rank=rank)
    noticed(job((command, place, how, rank), tmp_path), cause, time.time())


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("how", ["exit", "kill"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_leaves_a_job_without_mpi_ends_it(how: str, rank: int, tmp_path: Path) -> None:
    """torchrun's own report follows ours; it looks at its processes once in a while."""
    done = job(("sweep", "step", how, rank), tmp_path, launch=torchrun)
    ended = time.time()
    assert done.code != 0
    assert re.search("autotune: error: " + CAUSES[how].format(rank=rank), done.err) or f"exitcode  : {-9}" in done.err
    (left,) = re.findall(r"leaving at (\d+\.\d+)", done.err)
    assert ended - float(left) < 2 * MOST_S


# --- ranks that neither end nor answer ----------------------------------------------------------------------------------------


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_hangs_in_the_set_up_is_named_with_the_place(rank: int, tmp_path: Path) -> None:
    done = job(("sweep", "factory", "hang", rank), tmp_path, limit="15")
    noticed(
        done, rf"rank {rank} has been setting up for 15 s and stands in leave\(\) at .*leaving\.py", time.time(), 40
    )


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(("how", "rank"), [("stop", 0), ("stop", 2), ("lock", 1)])
def test_a_rank_that_is_stopped_or_keeps_pythons_lock_is_named(how: str, rank: int, tmp_path: Path) -> None:
    done = mpirun(3, str(PROGRAM), how, str(rank), cwd=tmp_path, env={"AUTOTUNE_SILENCE_LIMIT": "6"})
    noticed(done, rf"rank {rank} has not answered for 6 s: it is stopped, or stuck", time.time(), 6 + 2 * MOST_S)


@pytest.mark.mpi
@pytest.mark.slow
def test_rank_0_that_hangs_in_a_trial_is_named_with_the_place(tmp_path: Path) -> None:
    """Other ranks are missed by rank 0, which records the trial: `test_faults`."""
    done = job(("sweep", "step", "hang", 0), tmp_path, "--timeout", "4", limit="20")
    noticed(done, r"rank 0 has been in a trial for 28 s and stands in leave\(\) at .*leaving\.py", time.time(), 60)
