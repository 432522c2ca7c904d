"""A sweep on far more ranks than there are cores: start-up, groups, connections and time limits hold."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from tests.mpi.launch import autotune

NUM_RANKS = 64
NEEDED_BYTES = NUM_RANKS * 220 * 2**20
"""A rank's own memory, besides the libraries that all share."""
LIMIT_S = 1500


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.skipif(psutil.virtual_memory().available < NEEDED_BYTES, reason="needs 14 GB of free memory")
def test_64_ranks_sweep(tmp_path: Path) -> None:
    arguments = (
        "--workload",
        "mlp-tiny",
        "--cluster",
        "this-machine",
        "--trials",
        "3",
        "--steps",
        "2",
        "--rounds",
        "2",
    )
    done = autotune(NUM_RANKS, "sweep", *arguments, "--json", cwd=tmp_path, timeout_s=LIMIT_S)
    assert done.code == 0, done.err
    assert json.loads(done.out)
    (path,) = tmp_path.glob("results/data/*/*/records.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum(row["role"] == "search" for row in rows) == 3
    assert {row["state"] for row in rows} == {"complete"}
    assert all(len(row["ranks"]) == NUM_RANKS for row in rows)
