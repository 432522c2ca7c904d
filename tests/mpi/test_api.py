"""A training script of a user's own gives the same model on any number of ranks, and fails on all of them together."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from results.record import BestPlan
from results.store import write_json
from tests.mpi.launch import ROOT, mpirun
from workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan

EXAMPLES = ROOT / "examples"
PLANS = {
    "one": Plan(batch=BatchPlan(samples=(64,))),
    "crossing": Plan(
        batch=BatchPlan(samples=(48, 16)),
        comm=CommPlan(reducer="scheduled", partition_bytes=4096, credit_bytes=8192, crosses_steps=True),
        compression=CompressionPlan(factors=("2",)),
    ),
    "buckets": Plan(batch=BatchPlan(samples=(20, 44)), comm=CommPlan(bucket_bytes=4096)),
}


def plan_file(folder: Path, name: str) -> str:
    path = folder / f"{name}.json"
    kept = BestPlan(
        workload="own",
        workload_fingerprint="",
        cluster="this-machine",
        cluster_fingerprint="",
        plan=PLANS[name],
        step_s=1.0,
        speedup_over_default=None,
    )
    write_json(path, kept)
    return str(path)


def run(folder: Path, name: str) -> float:
    env = {"PYTHONPATH": f"{ROOT}:{EXAMPLES}"}
    size = len(PLANS[name].batch.samples)
    done = mpirun(size, str(EXAMPLES / "own_script.py"), plan_file(folder, name), cwd=folder, env=env)
    assert done.code == 0, done.err
    assert done.out.startswith("loss over all samples: "), done.out
    return float(done.out.split(":")[1])


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["crossing", pytest.param("buckets", marks=pytest.mark.slow)])
def test_the_example_trains_the_same_model_on_one_rank_and_on_two(name: str, tmp_path: Path) -> None:
    alone = run(tmp_path, "one")
    assert alone < 0.1
    assert run(tmp_path, name) == pytest.approx(alone, rel=1e-3)


FAILING = """
import sys
import torch
from torch import nn
from autotune.api import parallelize
from workloads.plan import BatchPlan, CommPlan, Plan

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plan = Plan(batch=BatchPlan(samples=(1, 1, 1)), comm=CommPlan(reducer="scheduled", crosses_steps=True))
data = torch.utils.data.TensorDataset(torch.randn(600, 4))
with parallelize(model, optimizer, plan) as job:
    for step, (x,) in enumerate(job.batches(data)):
        if job.rank == 1 and step == 5:
            raise ValueError("out of luck")
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
"""


@pytest.mark.mpi
@pytest.mark.slow
def test_a_rank_that_fails_ends_the_script_on_all(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    begun = time.monotonic()
    done = mpirun(3, "failing.py", cwd=tmp_path)
    assert done.code != 0
    assert time.monotonic() - begun < 60
    assert "ValueError: out of luck" in done.err
