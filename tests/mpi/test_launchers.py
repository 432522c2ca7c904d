"""Jobs without MPI: under torchrun scripts and sweeps give what they give under mpirun, and failures end all ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.runtime.launch.mpirun import NO_FABRIC
from tests.mpi.launch import MPIRUN, ROOT, mpirun, torchrun
from tests.mpi.test_api import EXAMPLES, plan_file

ENV = {"PYTHONPATH": f"{ROOT}:{EXAMPLES}"}


@pytest.mark.mpi
def test_the_example_script_trains_the_same_model_under_torchrun_and_mpirun(tmp_path: Path) -> None:
    command = (str(EXAMPLES / "own_script.py"), plan_file(tmp_path, "cross-step"))
    by_torchrun = torchrun(2, *command, cwd=tmp_path, env=ENV)
    by_mpirun = mpirun(2, *command, cwd=tmp_path, env=ENV)
    assert (by_torchrun.code, by_mpirun.code) == (0, 0), by_torchrun.err + by_mpirun.err
    assert by_torchrun.out.startswith("loss over all samples: ")
    assert by_torchrun.out == by_mpirun.out


@pytest.mark.mpi
@pytest.mark.slow
def test_a_sweep_under_torchrun(tmp_path: Path) -> None:
    arguments = (
        "sweep",
        "--workload",
        "mlp-tiny",
        "--cluster",
        "this-machine",
        "--trials",
        "2",
        "--rounds",
        "2",
        "--json",
    )
    done = torchrun(2, "-m", "autotune", *arguments, cwd=tmp_path, timeout_s=170)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert sum(trial["role"] == "search" for trial in report["trials"]) == 2
    assert all(
        trial["plan"]["comm"]["transport"] == "gloo" for trial in report["trials"] if trial["state"] == "complete"
    )
    assert "transport mpi is left out: torchrun has started the job without MPI" in done.err


FAILING = """
import sys, time
import torch
import autotune
model = torch.nn.Linear(4, 4)
with autotune.parallelize(model, torch.optim.SGD(model.parameters(), lr=0.1), global_batch=8) as job:
    if job.rank == 1:
        raise ValueError("out of luck")
    time.sleep(600)
"""
WRONG_MPI = """
import autotune, torch
model = torch.nn.Linear(4, 4)
autotune.parallelize(model, torch.optim.SGD(model.parameters(), lr=0.1), global_batch=8)
"""


@pytest.mark.mpi
@pytest.mark.slow
def test_a_failing_rank_ends_a_script_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    done = torchrun(2, "failing.py", cwd=tmp_path)
    assert done.code == 1
    assert "ValueError: out of luck" in done.err


@pytest.mark.mpi
@pytest.mark.slow
def test_torchrun_refuses_a_bad_command_once(tmp_path: Path) -> None:
    done = torchrun(2, "-m", "autotune", "sweep", "--workload", "mpl-tiny", cwd=tmp_path)
    assert len(done.errors) == 1, done.err
    assert "mlp-tiny" in done.errors[0]


@pytest.mark.mpi
def test_an_mpirun_of_another_mpi_than_mpi4py_loads_is_refused(tmp_path: Path) -> None:
    """As its rank 0 sees it: the process manager states two ranks, the MPI library here finds one."""
    (tmp_path / "script.py").write_text(WRONG_MPI)
    env = os.environ | {"PMI_RANK": "0", "PMI_SIZE": "2", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert "MPICH's mpirun has started 2 ranks, of which this is 0, but the MPI library here (Open MPI" in done.stderr
    assert "finds 1: use the mpirun of the MPI library that mpi4py loads" in done.stderr


CORES = """
import os
from autotune.runtime.control.rank_start import take_cores
from autotune.runtime.control.start import start_control
before = len(os.sched_getaffinity(0))
threads = take_cores(start_control())
print(before, len(os.sched_getaffinity(0)), threads)
"""


@pytest.mark.mpi
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_binding_that_mpirun_makes_by_default_is_undone_and_one_that_is_asked_for_is_kept(tmp_path: Path) -> None:
    (tmp_path / "cores.py").write_text(CORES)
    available = len(os.sched_getaffinity(0))

    def run(*flags: str) -> tuple[str, str]:
        command = [str(MPIRUN), "-n", "1", *flags, *NO_FABRIC, "--allow-run-as-root", sys.executable, "cores.py"]
        env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.strip(), done.stderr

    by_default, said = run()
    bound = by_default.split()[0]
    if int(bound) == available:
        pytest.skip(f"this mpirun binds a rank to all {available} cores")
    assert by_default == f"{bound} {available} {available}"
    assert "undone" in said
    asked, said = run("--bind-to", "core")
    assert asked == f"{bound} {bound} {bound}"
    assert "as --bind-to asks" in said
