"""Run a plan on a cluster that this machine can emulate, and time its steps."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from autotune.jobs.question import Question
from autotune.results.store.environment import available_cores
from autotune.results.store.record import BestPlan
from autotune.results.store.store import write_json
from autotune.results.text.cluster_text import cluster_toml
from autotune.runtime.launch.mpirun import mpirun_command
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.serial import to_data

STEPS = 30
_TIMEOUT_S = 900.0


def check_measurable(cluster: Cluster) -> None:
    """Before anything is planned."""
    if not cluster.is_emulated:
        raise SpecError(
            f"--measure runs the plans on this machine, which cannot be {cluster.name!r}: leave --measure out, export "
            "a plan with `autotune plan --export`, and train it there"
        )


def measured_step_s(question: Question, plan: BestPlan, cluster: Cluster) -> float:
    """Seconds of a step of `autotune train` on the emulated cluster."""
    with tempfile.TemporaryDirectory() as folder:
        plan_file, cluster_file = Path(folder) / "plan.json", Path(folder) / "cluster.toml"
        write_json(plan_file, to_data(plan))
        cluster_file.write_text(cluster_toml(cluster), encoding="utf-8")
        num_ranks = len(cluster.devices)
        arguments = ["train", "--workload", question.workload, "--cluster", str(cluster_file), "--plan", str(plan_file)]
        arguments += [word for key, value in question.options.items() for word in ("--set", f"{key}={value}")]
        arguments += [
            "--steps",
            str(STEPS),
            "--rounds",
            "2",
            "--seed",
            str(question.seed),
            "--results",
            folder,
            "--json",
            "--quiet",
        ]
        command = mpirun_command(num_ranks, arguments, num_cores=available_cores(), is_root=os.geteuid() == 0)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)  # noqa: S603
    if done.returncode:
        raise SpecError(f"the plan for {cluster.name!r} could not be run: {done.stderr.strip()[-300:]}")
    report = json.loads(done.stdout)
    return float(report["seconds"]) / int(report["num_steps"])
