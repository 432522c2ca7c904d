"""`mpirun -n N autotune doctor`: on CPUs, on fake accelerators, and on fake accelerators with defects, each in its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.accelerator.native import compiler
from tests.mpi.launch import Finished, autotune, torchrun

pytestmark = pytest.mark.mpi
DEVICES = {"FGPU_COUNT": "2"}
HEALTHY = [
    *("software", "rank 0", "rank 1", "sums over gloo", "sums over mpi", "messages", "kernel and clocks"),
    *("memory meter", "a rank that raises", "a rank that is killed"),
]
needs_fake = pytest.mark.skipif(compiler() is None, reason="the fake accelerator needs a C++ compiler: install g++")


def findings(done: Finished) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(done.out)
    return found


def problems(done: Finished) -> dict[str, str]:
    return {one["what"]: one["detail"] for one in findings(done) if one["state"] == "problem"}


def test_a_healthy_job_on_cpus(tmp_path: Path) -> None:
    done = autotune(2, "doctor", "--json", "--quiet", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    found = findings(done)
    assert list(dict.fromkeys(one["what"] for one in found)) == HEALTHY
    killed = found[-1]
    assert "rank 1 is gone without a farewell" in killed["detail"]
    assert killed["measured"][0]["released_s"] < 5
    assert killed["measured"][1]["exit_code"] == -9


@pytest.mark.slow
def test_the_table_is_shown_by_rank_0_alone_under_torchrun(tmp_path: Path) -> None:
    done = torchrun(2, "-m", "autotune", "doctor", cwd=tmp_path, timeout_s=170)
    assert done.code == 0, done.out + done.err
    assert done.out.count("sums over gloo") == 1
    assert "sums over mpi" not in done.out
    assert "all checks passed" in done.out


@pytest.mark.slow
@needs_fake
def test_a_healthy_job_on_fake_accelerators(tmp_path: Path) -> None:
    loaded = ("--load", "tests.accelerator.nccl_transport")
    done = autotune(2, "doctor", *loaded, "--json", "--quiet", cwd=tmp_path, timeout_s=170, env=DEVICES)
    assert done.code == 0, done.out + done.err
    details = {one["what"]: one["detail"] for one in findings(done)}
    assert "fgpu:1 Fake GPU 1 (FGPU-00000000000000000000000000000001), 16 GiB" in details["rank 1"]
    assert {"sums over fake-nccl", "sums over gloo, staged", "sums over mpi, staged"} <= set(details)
    assert "no counters: NVML does not start" in details["counters"]


@pytest.mark.slow
@needs_fake
def test_each_defect_has_its_line(tmp_path: Path) -> None:
    """Four at once: each is named with its rank, and none hides another one."""
    env = DEVICES | {"FGPU_DEFECTS": "sum:1,message:0,clock:0,meter:1"}
    loaded = ("--load", "tests.accelerator.defective")
    done = autotune(2, "doctor", *loaded, "--json", "--quiet", cwd=tmp_path, timeout_s=170, env=env)
    assert done.code == 1
    found = problems(done)
    assert set(found) == {"sums over fake-nccl", "messages", "kernel and clocks", "memory meter"}
    assert found["sums over fake-nccl"].startswith("rank 1: all-reduce of 4 B: 1 of 1 elements are wrong")
    assert found["messages"] == "rank 1: the message of rank 0 has not arrived"
    assert found["kernel and clocks"].startswith("rank 0: ")
    assert "by our clock" in found["kernel and clocks"]
    assert found["memory meter"] == "rank 1: the meter reads 0 B where 64 MiB are held"


@pytest.mark.slow
@needs_fake
def test_a_device_that_hangs_and_a_rank_that_is_absent_leave_no_rank_waiting(tmp_path: Path) -> None:
    env = DEVICES | {"FGPU_DEFECTS": "absent:1,freeze:0"}
    loaded = ("--load", "tests.accelerator.defective")
    done = autotune(2, "doctor", *loaded, "--json", "--quiet", cwd=tmp_path, timeout_s=110, env=env)
    assert done.code == 1
    found = problems(done)
    assert "NCCL error: unhandled system error" in " ".join(
        one["detail"] for one in findings(done) if one["what"] == "sums over fake-nccl" and 1 in one["ranks"]
    )
    assert found["kernel and clocks"] == "rank 0: no answer within 45 s"
