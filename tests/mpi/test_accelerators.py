"""Jobs on fake accelerators, with and without CPU ranks beside them, compute what jobs on CPUs compute."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.mpi.launch import autotune, mpirun

pytestmark = pytest.mark.mpi
PROGRAM = str(Path(__file__).parent / "programs" / "device_script.py")
DEVICES = {"FGPU_COUNT": "2"}
SLOW_LAST = DEVICES | {"FGPU_SLOWNESS": "1,3", "FGPU_FLOPS_PER_S": "2e7", "FGPU_LAUNCH_S": "2e-5"}
"""The second device takes three times as long."""
LOADED = ("--load", "tests.accelerator.nccl_transport", "--workload", "mlp", "--set", "size=tiny")


def found(where: str, tmp_path: Path) -> dict[str, list[float]]:
    done = mpirun(2, PROGRAM, where, cwd=tmp_path, env=DEVICES)
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    return {name: values for line in lines for name, values in line.items()}


def test_a_script_trains_the_same_on_accelerators_and_beside_cpus(tmp_path: Path) -> None:
    """By overlap, over MPI, by owner shards, by torch DDP, and retuned."""
    expected = found("cpu", tmp_path)
    for where in ("fgpu", "mixed"):
        for name, values in found(where, tmp_path).items():
            assert math.dist(values, expected[name]) < 1e-10 * math.hypot(*expected[name]), (where, name)


@pytest.mark.slow
def test_a_sweep_splits_by_the_time_of_the_devices(tmp_path: Path) -> None:
    """Three to one; so does retuning from an even split."""
    swept = autotune(2, "sweep", *LOADED, "--trials", "4", "--rounds", "2", "--json", cwd=tmp_path, env=SLOW_LAST)
    assert swept.code == 0, swept.err
    report = json.loads(swept.out)
    tuned = next(one for one in report["comparison"] if one["name"] == "tuned DDP")
    assert tuned["plan"]["batch"]["samples"] == [48, 16]
