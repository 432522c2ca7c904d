"""Jobs on fake accelerators, with and without CPU ranks beside them, compute what jobs on CPUs compute."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from autotune.jobs.context import capture_workload, workload_info
from autotune.jobs.job import Job
from autotune.results.store.best import BestPlan
from autotune.results.store.store import write_json
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, Plan
from autotune.workloads.registry import load_workload
from autotune.workloads.serial import from_data
from tests.mpi.launch import ROOT, autotune, mpirun
from tests.mpi.test_api import EXAMPLES, plan_file

pytestmark = pytest.mark.mpi
PROGRAMS = Path(__file__).parent / "programs"
PROGRAM = str(PROGRAMS / "device_script.py")
DEVICES = {"FGPU_COUNT": "2"}
SLOW_LAST = DEVICES | {"FGPU_SLOWNESS": "1,3", "FGPU_FLOPS_PER_S": "5e6", "FGPU_LAUNCH_S": "2e-5"}
"""The second device takes three times as long. Even small batches are computing, and not launches, whose time is that of a
busy host and the same on both.
"""
LOADED = ("--load", "tests.accelerator.nccl_transport", "--workload", "mlp", "--set", "size=tiny")
EXACT = (*LOADED, "--set", "dtype=float64")


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
def test_the_example_uses_the_accelerators(tmp_path: Path) -> None:
    """Both ranks, one rank, or none: by the same lines."""
    command = (str(EXAMPLES / "own_script.py"), plan_file(tmp_path, "cross-step"))
    paths = {"PYTHONPATH": f"{ROOT}:{EXAMPLES}"}
    losses = []
    for counted in ("2", "1,0", ""):
        program = (str(PROGRAMS / "example_on_devices.py"), *command) if counted else command
        done = mpirun(2, *program, cwd=tmp_path, env=paths | {"FGPU_COUNT": counted})
        assert done.code == 0, done.err
        losses.append(float(done.out.removeprefix("loss over all samples: ")))
    *on_devices, on_cpus = losses
    assert on_devices == pytest.approx([on_cpus] * 2, rel=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sweep_splits_by_the_time_of_the_devices(tmp_path: Path) -> None:
    """Three to one; so does retuning from an even split."""
    swept = autotune(
        2, "sweep", *LOADED, "--trials", "4", "--rounds", "2", "--json", cwd=tmp_path, env=SLOW_LAST, timeout_s=180
    )
    assert swept.code == 0, swept.err
    report = json.loads(swept.out)
    tuned = next(one for one in report["comparison"] if one["name"] == "tuned DDP")
    assert tuned["plan"]["batch"]["samples"] == [48, 16]


def training(folder: Path, plan: Plan, *more: str, env: dict[str, str]) -> dict[str, Any]:
    """The report of a training run by a plan."""
    options = {"size": "tiny", "dtype": "float64"}
    job = Job(workload="mlp", options=options, clusters=("this-machine",))
    workload = load_workload(job.workload, job.options)
    info = workload_info(job, workload.global_batch, capture_workload(workload, job.seed, name=job.workload))
    cluster = load_cluster("this-machine").for_ranks(2).on_hardware(["Fake GPU 0", "Fake GPU 1"])
    kept = BestPlan(
        workload=info.name,
        workload_fingerprint=info.fingerprint,
        cluster=cluster.name,
        cluster_fingerprint=cluster.fingerprint(),
        plan=plan,
        step_s=1.0,
        speedup_over_default=None,
    )
    write_json(folder / "plan.json", kept)
    chosen = ("--plan", "plan.json", "--rounds", "1", "--json")
    done = autotune(2, "train", *EXACT, *chosen, *more, cwd=folder, env=env, timeout_s=180)
    assert done.code == 0, done.err
    report: dict[str, Any] = json.loads(done.out)
    return report


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_profile_has_the_ratio_of_the_devices(tmp_path: Path) -> None:
    done = autotune(2, "profile", *LOADED, "--rounds", "5", "--json", cwd=tmp_path, env=SLOW_LAST, timeout_s=240)
    assert done.code == 0, done.err
    fast, slow = (rank["compute"]["per_sample_s"] for rank in json.loads(done.out)["ranks"])
    assert slow / fast == pytest.approx(3, rel=0.05)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_samples_leave_a_device_that_slows_down(tmp_path: Path) -> None:
    """Two equal devices, of which the second takes three times as long from its 6000th operation on, within 100 steps."""
    slows = DEVICES | {"FGPU_FLOPS_PER_S": "5e6", "FGPU_SLOWS_AFTER": "inf,6000", "FGPU_SLOWS_BY": "3"}
    even = Plan(batch=BatchPlan(samples=(32, 32)))
    trained = training(tmp_path, even, "--steps", "100", "--online", env=slows)
    assert len(trained["losses"]) == 100
    moved = [(one["step"], one["plan"]["batch"]["samples"]) for one in trained["decisions"]]
    assert moved
    kept, given = moved[-1][1]
    assert kept / given == pytest.approx(3, rel=0.15), moved


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_contenders_of_a_race_train_the_same_model(tmp_path: Path) -> None:
    """All of them come to an end, every plan they try runs, and none of their lossless ones changes a loss."""
    options = ("--trials", "3", "--rounds", "2", "--warmup", "1", "--steps", "2", "--json")
    done = autotune(2, "race", *EXACT, *options, cwd=tmp_path, env=SLOW_LAST, timeout_s=300)
    assert done.code == 0, done.err
    entrants = json.loads(done.out)["entrants"]
    assert len(entrants) == 7
    for entrant in entrants:
        assert len(entrant["tried"]) <= 3
        assert len(entrant["rounds_s"]) == 2
        assert all(one["step_s"] for one in entrant["tried"])
    plans = {json.dumps(one["plan"]): one["plan"] for one in entrants if one["is_lossless"]}
    assert len(plans) > 1
    first, *others = (
        training(tmp_path, from_data(Plan, plan, "plan"), "--steps", "6", env=SLOW_LAST)["losses"]
        for plan in plans.values()
    )
    for losses in others:
        assert losses == pytest.approx(first, rel=1e-10)
