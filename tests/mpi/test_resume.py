"""Killed at any moment, the same command goes on: nothing finished is lost or run again, the store stays readable."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.mpi.launch import autotune, start


def sweep_of(trials: int, workload: str = "mlp") -> tuple[str, ...]:
    job = ("sweep", "--workload", workload, "--cluster", "mixed4", "--steps", "4", "--rounds", "2")
    return (*job, "--trials", str(trials))


def run_and_kill(tmp_path: Path, sweep: tuple[str, ...], after_s: float, *, only_mpirun: bool) -> None:
    """Start the sweep, wait until it has started measuring, then kill it `after_s` later."""
    process = start(2, "-m", "autotune", *sweep, cwd=tmp_path)
    before = len(read_records(tmp_path))
    deadline = time.monotonic() + 60
    while len(read_records(tmp_path)) == before and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(after_s)
    assert process.poll() is None, "the sweep was over before it could be killed"
    if only_mpirun:
        os.kill(process.pid, signal.SIGKILL)
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    wait_until_gone(tmp_path)


def wait_until_gone(folder: Path) -> None:
    """No rank may outlive its mpirun."""
    deadline = time.monotonic() + 10
    while (left := processes_in(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"orphans: {left}"


def processes_in(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder and (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


def read_records(tmp_path: Path) -> list[dict[str, object]]:
    """As a reader would, while the job writes: complete lines only."""
    paths = list(tmp_path.glob("results/data/*/*/records.jsonl"))
    if not paths:
        return []
    return [json.loads(line) for line in paths[0].read_bytes().split(b"\n")[:-1]]


def check_store(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "autotune", "report", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)


def kill_and_resume(tmp_path: Path, num_kills: int, sweep: tuple[str, ...]) -> None:
    trials = int(sweep[-1])
    generator = random.Random(num_kills)
    finished: list[dict[str, object]] = []
    for kill in range(num_kills):
        run_and_kill(tmp_path, sweep, generator.uniform(0, 1.5), only_mpirun=kill % 2 == 0)
        now = read_records(tmp_path)
        assert now[: len(finished)] == finished, "a finished trial was lost or changed"
        finished = now
        check_store(tmp_path)
    done = autotune(2, *sweep, "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    records = read_records(tmp_path)
    assert records[: len(finished)] == finished
    assert [record["number"] for record in records] == list(range(len(records)))
    # The best plans of a long search are measured once more on purpose, and have no number in the search's storage.
    proposed = [r for r in records if r["role"] != "search" or r["search_number"] is not None]
    assert len({json.dumps(record["plan"]) for record in proposed}) == len(proposed), "a finished trial was run again"
    searched = sum(record["role"] == "search" for record in records)
    assert searched == trials or (searched < trials and "no other plan promises more than noise" in done.err)
    (database,) = tmp_path.glob("results/data/*/*/search.db")
    with sqlite3.connect(database) as connection:
        states = {state for (state,) in connection.execute("SELECT DISTINCT state FROM trials")}
    assert "RUNNING" not in states


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_killed_sweep_goes_on(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 1, sweep_of(4, "mlp-tiny"))


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sweep_killed_at_ten_random_moments_goes_on(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 10, sweep_of(40))
    records = read_records(tmp_path)
    assert autotune(2, *sweep_of(40), "--json", cwd=tmp_path).code == 0
    assert read_records(tmp_path) == records, "a finished sweep measured something again"
