"""Run by mpirun: a script whose communication configuration changes every few steps, also amid an accumulation."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace

import torch
from torch import nn
from torch.utils.data import TensorDataset

import autotune.api
from autotune.api import parallelize
from autotune.results.store.decision import LOOK, NETWORK, Decision
from autotune.runtime.control.start import start_control
from autotune.runtime.data.batches import Batches
from autotune.workloads.plan import BatchPlan, CommPlan, Plan

TOTAL, EPOCHS = 32, 2
torch.set_num_threads(1)
torch.manual_seed(1)
inputs = torch.randn(600, 8, dtype=torch.float64)
dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).double()
alone = copy.deepcopy(model)
OVERLAP = CommPlan(reducer="scheduled", partition_bytes=600, credit_bytes=2000, crosses_steps=True)
SCRIPT = {
    3: replace(OVERLAP, crosses_steps=False, partition_bytes=300),
    6: replace(OVERLAP, collective="shards"),
    9: replace(OVERLAP, collective="shards", shares=(0.25, 0.75)),
    14: replace(OVERLAP, crosses_steps=False, collective="shards", shares=(1.0, 0.0)),
    20: OVERLAP,
    25: replace(OVERLAP, priority="fifo"),
    30: replace(OVERLAP, crosses_steps=False),
}
LINK_PROBES = (8, 22)


class Scripted:
    """A controller with fixed decisions."""

    def __init__(self, _model, plan, _cluster, on_decision):
        self._plan, self._on_decision, self.num_probes = plan, on_decision, 0

    def decide(self, row):
        step = row.step + 1
        self.num_probes += row.arrivals is not None
        if step in LINK_PROBES:
            return Decision(step=step, plan=self._plan, kind=LOOK, switches=False, reason="the script")
        if step not in SCRIPT:
            return None
        first = 4 + step % 20
        self._plan = Plan(batch=BatchPlan(samples=(first, TOTAL - first)), comm=SCRIPT[step])
        decision = Decision(step=step, plan=self._plan, kind=NETWORK, reason="the script")
        self._on_decision(decision)
        return decision


def loss(net, batch):
    return nn.functional.mse_loss(net(batch[0]), batch[1])


def train(net, batches, configuration=None):
    """Every third batch is added to the next one's gradients."""
    optimizer, used = optimizer_of(net), []
    optimizer.zero_grad()
    for number, batch in enumerate(batches(optimizer)):
        loss(net, batch).backward()
        if number % 3 != 1:
            optimizer.step()
            optimizer.zero_grad()
        if configuration is not None:
            used.append(configuration())
    return used


def optimizer_of(net):
    return torch.optim.Adam(net.parameters(), lr=1e-2)


control = start_control()
autotune.api.script_controller = Scripted
plan = Plan(batch=BatchPlan(samples=(TOTAL // 2, TOTAL - TOTAL // 2)), comm=OVERLAP)
decisions, job = [], None


def retuned(optimizer):
    global job  # noqa: PLW0603 - a script
    job = parallelize(model, optimizer, plan, online=True, on_decision=decisions.append)
    for epoch in range(EPOCHS):
        yield from job.batches(dataset, epoch=epoch)
    job.close()


def one_by_one(_optimizer):
    batches = Batches(dataset, (TOTAL,), 0, seed=0)
    for step in range(EPOCHS * batches.steps_per_epoch):
        yield batches.take(step)[0]


used = train(model, retuned, lambda: job.plan.comm)
train(alone, one_by_one)
ours, theirs = (torch.cat([p.detach().reshape(-1) for p in net.parameters()]) for net in (model, alone))
found = {
    "off": float((ours - theirs).norm() / theirs.norm()),
    "decisions": len(decisions),
    "used": [list(SCRIPT.values()).index(comm) if comm in SCRIPT.values() else -1 for comm in used],
}
by_rank = control.share(found)
if control.is_leader:
    sys.stdout.write(json.dumps(by_rank) + "\n")
