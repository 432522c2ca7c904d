"""Your own training loop on all ranks of a job, by a plan that a sweep has found.

    autotune sweep --ranks 2 --workload own_workload:factory      # from this folder; once
    autotune best --export plan.json
    mpirun -n 2 python own_script.py plan.json

Without the four marked lines it is a plain training script of one process on `device`.
"""

from __future__ import annotations

import sys

import autotune  # 1
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from own_workload import factory

NUM_EPOCHS = 3

torch.manual_seed(0)
job = factory()
device = autotune.device()  # 2: this rank's accelerator, or the CPU
dataset, model = job.dataset(), job.model().to(device)
optimizer = job.optimizer(model)
schedule = CosineAnnealingLR(optimizer, NUM_EPOCHS)

with autotune.parallelize(model, optimizer, sys.argv[1]) as parallel:  # 3
    for _ in range(NUM_EPOCHS):
        for batch in parallel.batches(dataset):  # 4
            optimizer.zero_grad()
            loss = job.loss(model, [part.to(device) for part in batch])  # the mean over this rank's samples
            loss.backward()
            optimizer.step()
        schedule.step()

if parallel.rank == 0:
    with torch.no_grad():
        whole = float(job.loss(model, [part.to(device) for part in dataset[:]]))
    sys.stdout.write(f"loss over all samples: {whole:.6f}\n")
