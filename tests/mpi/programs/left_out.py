"""Run by mpirun: plans that leave ranks out, by the runner of trials, against the plan of all ranks.

Prints one JSON line per plan from rank 0: {"samples", "reducer", "transport", "error", "ranks"}; `error` is the largest relative
difference of a loss. Then one of an interleaved comparison: {"rounds", "waiting_cpu"}, the CPU seconds of a rank that is left out
per second.
"""

from __future__ import annotations

import json
import time

import torch

from autotune.runtime.control.start import start_control
from autotune.runtime.train.trainer import RankContext
from autotune.runtime.transport.groups import Groups
from autotune.runtime.trial.runner import Budget, RankRunner
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from autotune.workloads.registry import load_workload

BUDGET = Budget(warmup=1, steps=5, timeout_s=60, traced=False)
WAYS = (
    {"reducer": "bucketed"},
    {"reducer": "ddp"},
    {"reducer": "scheduled", "partition_bytes": 2**12, "credit_bytes": 2**13},
    {"reducer": "scheduled", "partition_bytes": 2**12, "credit_bytes": 2**13, "crosses_steps": True},
    {"collective": "shards"},
    {"transport": "mpi"},
)


def main() -> None:
    torch.set_num_threads(1)
    control = start_control()
    cluster = load_cluster("this-machine").for_ranks(control.size)
    rank_context = RankContext(
        rank=control.rank,
        device=cluster.devices[0],
        torch_device=torch.device("cpu"),
        network=control.network(),
    )
    workload = load_workload("mlp-tiny", {"dtype": "float64"})
    runner = RankRunner(workload, Groups(control, cluster), rank_context, seed=3)
    total, size = workload.global_batch, control.size
    every = Plan(batch=BatchPlan(samples=(total - size + 1, *[1] * (size - 1))))

    def losses(plan: Plan) -> tuple[list[float], list[int]]:
        outcome = runner.train(plan, BUDGET, lambda _: None)
        assert outcome.fault is None, outcome.fault
        assert outcome.result is not None
        shared = control.share([list(outcome.loss_shares), outcome.result.samples, outcome.result.peak_memory_bytes])
        return [sum(one) for one in zip(*(of for of, _, _ in shared), strict=True)], [held for _, _, held in shared]

    expected, _ = losses(every)
    splits = [
        (0, total - 3, *[3] * (size > 2), *[0] * (size - 3)),
        (*[0] * (size - 1), total),
        (total, *[0] * (size - 1)),
    ]
    for samples in splits:
        for way in WAYS:
            plan = Plan(batch=BatchPlan(samples=samples), comm=CommPlan(**way))
            found, held = losses(plan)
            error = max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))
            assert all((peak > 0) == (rank in plan.used_ranks) for rank, peak in enumerate(held)), held
            if control.is_leader:
                print(json.dumps({"samples": samples, "error": error} | way), flush=True)
    others = Plan(batch=BatchPlan(samples=(0, total - 1, 1, *[0] * (size - 3))))
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    outcomes = runner.compare([every, others], 3, Budget(warmup=1, steps=3, timeout_s=60))
    assert [outcome.fault for outcome in outcomes] == [None, None], outcomes
    used = (time.process_time() - begun_cpu_s) / (time.monotonic() - begun_s)
    if control.is_leader:
        print(json.dumps({"rounds": [len(outcome.steps_s) for outcome in outcomes], "waiting_cpu": used}), flush=True)
    control.share(None)
    runner.close()
    control.leave()


if __name__ == "__main__":
    main()
