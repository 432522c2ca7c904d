"""Run by mpirun: training under the even split and under one that changes at random every few steps, seed by seed.

`python convergence_runs.py WORKLOAD EPOCHS SEEDS DTYPE`; prints one JSON line per run from rank 0.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import torch

from autotune.runtime.control.mpi import Control
from autotune.runtime.control.start import start_control
from autotune.runtime.train.trainer import RankContext, Trainer
from autotune.runtime.transport.groups import Groups
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, Plan
from autotune.workloads.registry import load_workload
from autotune.workloads.split import bounds, even

LONGEST = 5
"""Steps between two changes of the split, at most."""


def random_split(generator: random.Random, num_ranks: int, total: int) -> tuple[int, ...]:
    cuts = sorted(generator.randint(0, total) for _ in range(num_ranks - 1))
    return tuple(b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True))


def train(  # noqa: PLR0913 - one run
    workload: Any, groups: Groups, control: Control, seed: int, *, epochs: int, changing: bool
) -> dict[str, Any]:
    size, total = control.size, workload.global_batch
    rank_context = RankContext(
        rank=control.rank,
        device=load_cluster("this-machine").devices[0],
        torch_device=torch.device("cpu"),
        network=control.network(),
    )
    plan = Plan(batch=BatchPlan(samples=even(total, bounds(size, total))))
    generator, num_changes = random.Random(seed), 0
    with groups.open("gloo", timeout_s=600) as group:
        trainer = Trainer(workload, plan, group, rank_context, seed=seed)
        next_change = 1
        losses = []
        for step in range(epochs * trainer.batches.steps_per_epoch):
            if changing and step == next_change:
                trainer.resplit(step, random_split(generator, size, total))
                next_change, num_changes = step + generator.randint(1, LONGEST), num_changes + 1
            losses.append(trainer.step().loss_share)
        model, steps = trainer.model, trainer.batches.steps_per_epoch
        trainer.close()
        del group
    last = sum(sum(shares) for shares in zip(*control.share(losses[-steps:]), strict=True)) / steps
    accuracy = float(workload.accuracy(model))
    return {"loss": last, "accuracy": accuracy, "num_steps": len(losses), "num_changes": num_changes}


def main() -> None:
    torch.set_num_threads(1)
    name, epochs, seeds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    control = start_control()
    groups = Groups(control, load_cluster("this-machine").for_ranks(control.size))
    workload: Any = load_workload(name, {"dtype": sys.argv[4]})
    for seed in range(seeds):
        for changing in (False, True):
            found = train(workload, groups, control, seed, epochs=epochs, changing=changing)
            if control.is_leader:
                run = {
                    "workload": name,
                    "seed": seed,
                    "split": "changing" if changing else "even",
                    "ranks": control.size,
                }
                sys.stdout.write(json.dumps(run | found) + "\n")
                sys.stdout.flush()
    control.share(None)


main()
