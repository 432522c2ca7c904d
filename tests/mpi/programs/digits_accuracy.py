"""Run by mpirun on 3 ranks: train digits under very different splits, or with `codecs` under every lossy codec and local SGD;
prints {"name", "accuracy"} lines from rank 0.
"""

from __future__ import annotations

import json
import sys

import torch

from autotune.runtime.control.start import start_control
from autotune.runtime.train.trainer import RankContext, Trainer
from autotune.runtime.transport.groups import Groups
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan
from autotune.workloads.registry import load_workload

NUM_STEPS = 300
"""Until accuracy has converged: before that, plans differ by more than at the end."""
PLANS = {
    "even, DDP": Plan(batch=BatchPlan(samples=(22, 21, 21)), comm=CommPlan(reducer="ddp")),
    "uneven": Plan(batch=BatchPlan(samples=(50, 13, 1))),
    "one rank idle": Plan(batch=BatchPlan(samples=(0, 60, 4)), comm=CommPlan(bucket_bytes=2**15)),
}

UNEVEN = BatchPlan(samples=(40, 16, 8))
CODECS = {
    name: Plan(
        batch=UNEVEN, comm=CommPlan(reducer="scheduled"), compression=CompressionPlan(codec=name, top_share=0.05)
    )
    for name in ("none", "fp16", "bf16", "int8", "topk", "powersgd")
} | {"averaged": Plan(batch=UNEVEN, comm=CommPlan(reducer="averaged", average_every=4))}

torch.set_num_threads(1)
control = start_control()
workload = load_workload("digits")
groups = Groups(control, load_cluster("this-machine").for_ranks(control.size))
rank_context = RankContext(
    rank=control.rank,
    device=load_cluster("this-machine").devices[0],
    torch_device=torch.device("cpu"),
    network=control.network(),
)
for name, plan in (CODECS if sys.argv[1:] == ["codecs"] else PLANS).items():
    with groups.open("gloo", timeout_s=60) as group:
        trainer = Trainer(workload, plan, group, rank_context, seed=0)
        for _ in range(NUM_STEPS):
            trainer.step()
        accuracy = workload.accuracy(trainer.model)  # type: ignore[attr-defined]
        trainer.close()
        del group
    if control.is_leader:
        sys.stdout.write(json.dumps({"name": name, "accuracy": accuracy}) + "\n")
control.share(None)
