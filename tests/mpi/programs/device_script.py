"""Run by mpirun: a script with `parallelize`, on the CPU or on fake accelerators: `python device_script.py cpu|fgpu|mixed`.

Rank 0 prints the trained parameters of several plans as one JSON line each; they must not depend on the device.
"""

from __future__ import annotations

import json
import os
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import autotune
from autotune.workloads.plan import BatchPlan, CommPlan, Plan

WHERE = sys.argv[1]
RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
if WHERE == "fgpu" or (WHERE == "mixed" and RANK == 0):
    import tests.accelerator.fgpu  # noqa: F401 - makes the device type known
    from autotune.runtime import device

    DEVICE = device.take(RANK).device
else:
    DEVICE = torch.device("cpu")

PLANS = {
    "overlap": CommPlan(
        reducer="scheduled", bucket_bytes=2048, partition_bytes=1024, credit_bytes=4096, crosses_steps=True
    ),
    "mpi": CommPlan(reducer="scheduled", transport="mpi", bucket_bytes=2048, partition_bytes=1024, credit_bytes=4096),
    "shards": CommPlan(reducer="scheduled", collective="shards", bucket_bytes=2048, partition_bytes=1024),
    "ddp": CommPlan(reducer="ddp"),
}


def trained(comm: CommPlan, *, online: bool = False) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2)).double().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(120, 6, dtype=torch.float64), torch.randn(120, 2, dtype=torch.float64))
    plan = Plan(batch=BatchPlan(samples=(7, 5)), comm=comm)
    with autotune.parallelize(model, optimizer, plan, online=online) as job:
        for inputs, targets in job.batches(data):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs.to(DEVICE)), targets.to(DEVICE)).backward()
            optimizer.step()
        job.wait()
        return torch.cat([p.detach().to("cpu").reshape(-1) for p in model.parameters()]).tolist()


for name, comm in PLANS.items():
    found = trained(comm)
    if RANK == 0:
        print(json.dumps({name: found}), flush=True)
found = trained(PLANS["overlap"], online=True)
if RANK == 0:
    print(json.dumps({"online": found}), flush=True)
