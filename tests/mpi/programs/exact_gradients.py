"""Run by mpirun: the gradient of every split, reducer and transport against that of one process on the whole batch.

`norms`: of a model whose BatchNorm layers are synchronised. Prints one JSON line per case from rank 0: {"workload", "dtype", "samples", "reducer", "transport", "error"}.
"""

from __future__ import annotations

import json
import random
import sys

import torch

from autotune.runtime.control.mpi import Control
from autotune.runtime.control.start import start_control
from autotune.runtime.train.trainer import RankContext, Trainer
from autotune.runtime.transport.groups import Groups
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from autotune.workloads.registry import load_workload
from autotune.workloads.workload import Workload

NUM_STEPS = 2


def main() -> None:
    torch.set_num_threads(1)
    control = start_control()
    groups = Groups(control, load_cluster("this-machine").for_ranks(control.size))
    norms = sys.argv[1:] == ["norms"]
    for name in ("resnet-tiny",) if norms else ("mlp-tiny", "gpt-tiny", "digits"):
        for dtype in ("float64",) if norms else ("float32", "float64"):
            workload = load_workload(name, {"dtype": dtype} | ({"norm": "sync"} if norms else {}))
            for plan in plans(workload.global_batch, control.size):
                check(workload, dtype, plan, groups, control)
    control.share(None)


def plans(batch: int, num_ranks: int) -> list[Plan]:
    generator = random.Random(num_ranks)
    chosen = [
        Plan(batch=BatchPlan(samples=split(batch, num_ranks, generator)), comm=CommPlan(bucket_bytes=2**14))
        for _ in range(3)
    ]
    positive = split(batch - num_ranks, num_ranks, generator)
    chosen.append(Plan(batch=BatchPlan(samples=tuple(b + 1 for b in positive)), comm=CommPlan(reducer="ddp")))
    chosen.append(Plan(batch=BatchPlan(samples=split(batch, num_ranks, generator)), comm=CommPlan(transport="mpi")))
    if num_ranks > 1:
        one_idle = (0, *split(batch, num_ranks - 1, generator))
        chosen.append(Plan(batch=BatchPlan(samples=one_idle)))
        everything_on_one = (batch, *[0] * (num_ranks - 1))
        chosen.append(Plan(batch=BatchPlan(samples=everything_on_one)))
    return chosen


def split(total: int, parts: int, generator: random.Random) -> tuple[int, ...]:
    cuts = sorted(generator.randint(0, total) for _ in range(parts - 1))
    return tuple(b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True))


def check(workload: Workload, dtype: str, plan: Plan, groups: Groups, control: Control) -> None:
    rank_context = RankContext(
        rank=control.rank,
        device=load_cluster("this-machine").devices[0],
        torch_device=torch.device("cpu"),
        network=control.network(),
    )
    with groups.open(plan.comm.transport, timeout_s=30) as group:
        trainer = Trainer(workload, plan, group, rank_context, seed=3)
        for _ in range(NUM_STEPS):
            trainer.step()
        ours = [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in trainer.model.parameters()]
        trainer.close()
        del group
    if control.is_leader:
        reference = whole_batch_gradient(workload, sum(plan.batch.samples))
        error = norm([a - b for a, b in zip(ours, reference, strict=True)]) / norm(reference)
        case = {"workload": workload.name, "dtype": dtype, "samples": plan.batch.samples, "ranks": control.size}
        comm = {"reducer": plan.comm.reducer, "transport": plan.comm.transport, "error": error}
        sys.stdout.write(json.dumps(case | comm) + "\n")


def whole_batch_gradient(workload: Workload, batch: int) -> list[torch.Tensor]:
    """Plain torch with our order of the data: the last of NUM_STEPS steps on the whole batch."""
    torch.manual_seed(3)
    model = workload.model()
    optimizer = workload.optimizer(model)
    dataset = workload.dataset()
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(3 * 1_000_003))
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        workload.loss(model, dataset[order[step * batch : (step + 1) * batch]]).backward()
        if step < NUM_STEPS - 1:
            optimizer.step()
    return [p.grad for p in model.parameters()]


def norm(tensors: list[torch.Tensor]) -> float:
    return float(sum(float(t.double().square().sum()) for t in tensors)) ** 0.5


main()
