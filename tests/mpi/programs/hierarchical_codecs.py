"""Run by mpirun: every codec trained with sums within hosts first, on hosts of one and of several ranks, against the ring.

Prints one JSON line per case from rank 0: {"codec", "reducer", "collective", "error", "learned"}; `error` is the largest relative
difference of a loss to that of the same codec over the ring, `learned` how far the loss has come.
"""

from __future__ import annotations

import json

import torch

from autotune.runtime.control.start import start_control
from autotune.runtime.train.trainer import RankContext
from autotune.runtime.transport.groups import Groups
from autotune.runtime.trial.runner import Budget, RankRunner
from autotune.workloads.cluster import Cluster, Device, Host
from autotune.workloads.plan import CODECS, BatchPlan, CommPlan, CompressionPlan, Plan
from autotune.workloads.plan.choices import HIERARCHICAL
from autotune.workloads.registry import load_workload

BUDGET = Budget(warmup=1, steps=5, timeout_s=60, traced=False)
PARTITIONS = {"partition_bytes": 2**12, "credit_bytes": 2**14}


def main() -> None:
    torch.set_num_threads(1)
    control = start_control()
    device = Device(name="cpu")
    hosts = tuple(Host(name=f"host{n}", devices=(device,) * count) for n, count in enumerate((1, control.size - 1)))
    rank_context = RankContext(
        rank=control.rank, device=device, torch_device=torch.device("cpu"), network=control.network()
    )
    workload = load_workload("mlp-tiny", {"dtype": "float64"})
    runner = RankRunner(workload, Groups(control, Cluster(name="uneven", hosts=hosts)), rank_context, seed=3)
    total, size = workload.global_batch, control.size
    batch = BatchPlan(samples=(total - 2 * size + 2, *[2] * (size - 1)))

    def losses(codec: str, reducer: str, collective: str) -> list[float]:
        cut = PARTITIONS if reducer == "scheduled" else {}
        comm = CommPlan(reducer=reducer, collective=collective, **cut)
        plan = Plan(batch=batch, comm=comm, compression=CompressionPlan(codec=codec))
        plan.validate(num_ranks=size, global_batch=total)
        outcome = runner.train(plan, BUDGET, lambda _: None)
        assert outcome.fault is None, outcome.fault
        return [sum(one) for one in zip(*control.share(list(outcome.loss_shares)), strict=True)]

    for codec, kind in CODECS.items():
        for reducer in ("scheduled", *["bucketed"] * kind.is_one_round):
            ring = losses(codec, reducer, "ring")
            for collective in HIERARCHICAL:
                found = losses(codec, reducer, collective)
                error = max(abs(a - b) / abs(b) for a, b in zip(found, ring, strict=True))
                if control.is_leader:
                    case = {"codec": codec, "reducer": reducer, "collective": collective, "error": error}
                    print(json.dumps(case | {"learned": 1 - min(found) / found[0]}), flush=True)
    runner.close()
    control.leave()


if __name__ == "__main__":
    main()
