"""Make the runs of the experiment on false alarms: `python -m tests.benchmarks.aa_runs [FOLDER]` (about 20 minutes).

Two sets, each from several jobs: on the machine as it is, and beside neighbours that work in bursts on both cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from autotune.results.judge.series import Run, Runs
from autotune.results.store.environment import describe_environment
from autotune.results.store.store import write_json
from autotune.workloads.serial import from_data
from tests.mpi.launch import ROOT, mpirun

PROGRAMS = ROOT / "tests" / "benchmarks" / "programs"
PUBLISHED = ROOT / "results" / "published" / "compare"
CONDITIONS = {"as-is": 0, "noisy": 2}
"""Name of the set, and how many neighbours."""
JOBS, ROUNDS = 8, 20
JOB_LIMIT_S = 600


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """That many neighbours while the block runs."""
    started = [subprocess.Popen([sys.executable, str(PROGRAMS / "neighbour.py"), str(seed)]) for seed in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def one_job(number: int, num_rounds: int, folder: Path) -> list[Run]:
    out = folder / f"job{number}.json"
    done = mpirun(
        2, str(PROGRAMS / "paced_runs.py"), str(out), str(number), str(num_rounds), cwd=folder, timeout_s=JOB_LIMIT_S
    )
    if done.code:
        raise RuntimeError(f"job {number} failed: {done.err}")
    return [from_data(Run, entry, str(out)) for entry in json.loads(out.read_text())]


def make(condition: str, *, num_jobs: int = JOBS, num_rounds: int = ROUNDS) -> Runs:
    """All runs under one condition."""
    with tempfile.TemporaryDirectory() as folder, neighbours(CONDITIONS[condition]):
        runs = [run for number in range(num_jobs) for run in one_job(number, num_rounds, Path(folder))]
    return Runs(
        what=f"vgg-tiny on 2 ranks of a paced pair of devices, {condition}",
        label="emulated",
        runs=tuple(runs),
        environment=describe_environment(),
        command="nox -s aa",
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def main(folder: Path = PUBLISHED) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for condition in CONDITIONS:
        write_json(folder / f"runs-{condition}.json", make(condition))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
