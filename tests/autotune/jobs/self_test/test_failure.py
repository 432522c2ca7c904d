"""The deliberate failure: what the second job is started with, and what its end says."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from autotune.jobs.self_test.failing_job import KILLED
from autotune.jobs.self_test.failure import LIMIT_S, FailingJob, FailureFacts, facts_of, judge_failure
from autotune.jobs.self_test.finding import OK, PROBLEM
from autotune.runtime.launch.launcher import LauncherKind, launcher_of
from tests.autotune.runtime.launch.test_launcher import INTEL, OPEN_MPI, SRUN_PMI2, TORCHRUN

JOB = FailingJob(
    how=KILLED,
    rank=1,
    size=3,
    device="cuda:1",
    transport="nccl",
    modules=("a.b",),
    address="10.0.0.1",
    port=4000,
)
ENDED = FailureFacts(is_ready=True, released_s=0.4, exit_code=1, messages=())
SAID = replace(ENDED, messages=("rank 2 is gone without a farewell: was it killed?",))
LOST = FailureFacts(is_ready=True, released_s=None, exit_code=-9, messages=())


@pytest.mark.parametrize("outer", [OPEN_MPI, INTEL, SRUN_PMI2, TORCHRUN, {}])
def test_a_rank_of_the_second_job_meets_the_others_at_a_store_under_every_launcher(outer: dict[str, str]) -> None:
    environment = JOB.environment(outer | {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1"})
    found = launcher_of(environment)
    assert (found.kind, found.rank, found.size, found.speaks_mpi) == (LauncherKind.TORCHRUN, 1, 3, False)
    assert found.rendezvous is not None
    assert (found.rendezvous.address, found.rendezvous.port, found.rendezvous.is_served) == ("10.0.0.1", 4000, False)
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"


def test_the_command_names_failure_device_transport_and_modules() -> None:
    assert JOB.command[1:] == ["-m", "autotune.jobs.self_test.failing_job", KILLED, "2", "cuda:1", "nccl", "a.b"]
    assert JOB.environment(os.environ)["PATH"] == os.environ["PATH"]


def test_the_time_until_a_rank_is_released_counts_from_the_failure() -> None:
    out, err = "together at 100.0\n", "a stack\nautotune: error: rank 2 is gone\n"
    found = facts_of(JOB, out, err, ended_s=102.0, exit_code=1)
    assert found == replace(ENDED, released_s=1.5, messages=("rank 2 is gone",))
    failing = facts_of(replace(JOB, rank=2), out, "Traceback\nRuntimeError: on purpose\n", ended_s=101.0, exit_code=1)
    assert (failing.released_s, failing.messages) == (None, ("RuntimeError: on purpose",))
    never = facts_of(JOB, "", "ImportError: no module\n", ended_s=102.0, exit_code=1)
    assert (never.is_ready, never.messages) == (False, ("ImportError: no module",))


def test_ranks_that_end_in_time_with_a_reason() -> None:
    (found,) = judge_failure("killed", JOB, [(0, SAID), (1, ENDED), (2, LOST)])
    assert found.state == OK
    assert "rank 2 was lost, the others have ended after 0.4 s at the latest (rank 2 is gone" in found.detail


@pytest.mark.parametrize(
    ("rank_1", "words"),
    [
        (replace(ENDED, released_s=7.04), "rank 1: has ended only 7.0 s after rank 2"),
        (replace(ENDED, exit_code=None), f"rank 1: has not ended within {LIMIT_S:g} s after the failure"),
        (replace(ENDED, exit_code=0), "rank 1: has ended with exit code 0 although rank 2 was lost"),
        (replace(ENDED, is_ready=False, messages=("out of memory",)), "the second job did not start: out of memory"),
    ],
)
def test_a_rank_that_is_not_released_is_named(rank_1: FailureFacts, words: str) -> None:
    found = judge_failure("killed", JOB, [(0, SAID), (1, rank_1), (2, LOST)])
    assert [one.state for one in found] == [PROBLEM]
    assert words in found[0].detail


def test_an_end_without_a_reason_is_a_problem() -> None:
    (found,) = judge_failure("killed", JOB, [(0, ENDED), (1, ENDED), (2, LOST)])
    assert (found.state, found.detail) == (PROBLEM, "rank 0: no rank says that rank 2 was lost")
