"""Run by mpirun: one rank leaves in its sixth step. leaves_early.py HOW RANK"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import torch
from torch import nn

import autotune
from autotune.workloads.plan import BatchPlan, CommPlan, Plan

HOW, WHO = sys.argv[1], int(sys.argv[2])
SIZE = int(os.environ["OMPI_COMM_WORLD_SIZE"])


def leave() -> bool:
    sys.stderr.write(f"leaving at {time.time()}\n")
    sys.stderr.flush()
    if HOW == "exception":
        raise ValueError("boom")
    if HOW == "exit":
        sys.exit(3)
    if HOW == "os-exit":
        os._exit(5)
    if HOW == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if HOW == "lock":
        ctypes.PyDLL(None).sleep(600)  # keeps Python's lock
    return HOW == "return"


def train(job: autotune.Parallel) -> None:
    for step in range(100_000):
        if (step == 5 and job.rank == WHO and leave()) or (HOW == "none" and step == 5):
            return
        optimizer.zero_grad()
        if step % 2:
            job.count(2)
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()


model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
comm = CommPlan(reducer="scheduled", partition_bytes=16, credit_bytes=64, crosses_steps=True)
with autotune.parallelize(model, optimizer, Plan(batch=BatchPlan(samples=(2,) * SIZE), comm=comm)) as job:
    job.count(2)
    train(job)
