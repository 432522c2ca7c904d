"""A user's training script gives the same model on any number of ranks, and fails on all of them together."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from autotune.results.store.record import BestPlan
from autotune.results.store.store import write_json
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan
from tests.mpi.launch import ROOT, mpirun

EXAMPLES = ROOT / "examples"
PLANS = {
    "one": Plan(batch=BatchPlan(samples=(64,))),
    "cross-step": Plan(
        batch=BatchPlan(samples=(48, 16)),
        comm=CommPlan(reducer="scheduled", partition_bytes=4096, credit_bytes=8192, crosses_steps=True),
        compression=CompressionPlan(factors=("2",)),
    ),
    "left out": Plan(batch=BatchPlan(samples=(64, 0))),
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
@pytest.mark.slow
@pytest.mark.parametrize("name", ["cross-step", "buckets"])
def test_the_example_trains_the_same_model_on_one_rank_and_on_two(name: str, tmp_path: Path) -> None:
    alone = run(tmp_path, "one")
    assert alone < 0.1
    assert run(tmp_path, name) == pytest.approx(alone, rel=1e-3)


@pytest.mark.mpi
def test_a_plan_that_leaves_a_rank_out_is_one_message(tmp_path: Path) -> None:
    env = {"PYTHONPATH": f"{ROOT}:{EXAMPLES}"}
    done = mpirun(2, str(EXAMPLES / "own_script.py"), plan_file(tmp_path, "left out"), cwd=tmp_path, env=env)
    assert done.code == 1, done.err
    assert len(done.errors) == 1, done.err
    assert "gives a rank no samples ([64, 0])" in done.errors[0]


FAILING = """
import sys
import torch
from torch import nn
from autotune.api import parallelize
from autotune.workloads.plan import BatchPlan, CommPlan, Plan

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


RESUMED = """
import sys
import torch
from torch import nn
from autotune.api import parallelize
from autotune.workloads.plan import BatchPlan, CommPlan, Plan

samples = tuple(int(count) for count in sys.argv[1].split(","))
data = torch.utils.data.TensorDataset(torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).double())


def net():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(kept, until):
    model, optimizer = net()
    plan = Plan(batch=BatchPlan(samples=samples), comm=CommPlan(reducer="scheduled", crosses_steps=True))
    with parallelize(model, optimizer, plan, sync_norm=True) as job:
        if kept is not None:
            model.load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])
            job.load_state_dict(kept["job"])
        for epoch in range(job.epoch, 3):
            for (x,) in job.batches(data, epoch=epoch, num_workers=1):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                if job.next_step in (2, 9) and len(samples) > 1:
                    job.resplit(job.next_step + 1, {2: (1, 7), 9: (6, 2)}[job.next_step])
                if job.next_step == until:
                    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "job": job.state_dict()}
    if job.rank == 0:
        state = torch.cat([value.double().reshape(-1) for value in model.state_dict().values()])
        sys.stdout.write(f"state: {float(state.norm())!r} {float(state.sum())!r}\\n")


train(None, None)
train(train(None, 10), None)
"""


@pytest.mark.slow
@pytest.mark.mpi
def test_splits_that_change_workers_norms_and_a_resumed_job_make_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "resumed.py").write_text(RESUMED)
    found: list[list[float]] = []
    for samples in ("8", "5,3"):
        done = mpirun(samples.count(",") + 1, "resumed.py", samples, cwd=tmp_path)
        assert done.code == 0, done.err
        found += [[float(word) for word in line.split()[1:]] for line in done.out.splitlines() if "state:" in line]
    assert len(found) == 4
    for one in found[1:]:
        assert one == pytest.approx(found[0], rel=1e-10)
