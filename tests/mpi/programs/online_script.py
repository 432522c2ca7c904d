"""Run by mpirun: a script whose rank 0 becomes three times slower; samples move, and the model equals that of one process."""

from __future__ import annotations

import copy
import json
import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.api import parallelize
from autotune.runtime.control.start import start_control
from autotune.runtime.data.batches import Batches
from autotune.workloads.plan import BatchPlan, CommPlan, Plan

TOTAL, EPOCHS, SLOW_FROM = 32, 2, 20
SAMPLE_S = 0.002
torch.set_num_threads(1)
torch.manual_seed(1)
inputs = torch.randn(600, 8, dtype=torch.float64)
dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).double()
alone = copy.deepcopy(model)


def loss(net, batch):
    return nn.functional.mse_loss(net(batch[0]), batch[1])


def optimizer_of(net):
    return torch.optim.Adam(net.parameters(), lr=1e-2)


control = start_control()
overlap = CommPlan(reducer="scheduled", partition_bytes=600, credit_bytes=2000, crosses_steps=True)
plan = Plan(batch=BatchPlan(samples=(TOTAL // 2, TOTAL - TOTAL // 2)), comm=overlap)
optimizer, decisions, counts = optimizer_of(model), [], []
with parallelize(model, optimizer, plan, online=True, on_decision=decisions.append) as job:
    for epoch in range(EPOCHS):
        for batch in job.batches(dataset, epoch=epoch):
            counts.append(len(batch[0]))
            slower = 3 if control.rank == 0 and len(counts) > SLOW_FROM else 1
            time.sleep(SAMPLE_S * slower * len(batch[0]))
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()

optimizer, batches = optimizer_of(alone), Batches(dataset, (TOTAL,), 0, seed=0)
for step in range(EPOCHS * batches.steps_per_epoch):
    optimizer.zero_grad()
    loss(alone, batches.take(step)[0]).backward()
    optimizer.step()
ours, theirs = (torch.cat([p.detach().reshape(-1) for p in net.parameters()]) for net in (model, alone))
found = {
    "off": float((ours - theirs).norm() / theirs.norm()),
    "counts": counts,
    "decisions": [[decision.step, decision.kind, decision.plan.batch.samples] for decision in decisions],
}
found["all"] = control.share(counts)
if control.is_leader:
    sys.stdout.write(json.dumps(found) + "\n")
