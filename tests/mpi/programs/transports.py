"""Run by mpirun: the contract of a transport, for each of them, plain and paced. Prints {"case", "ok"} from rank 0."""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist

from autotune.runtime.control import start_control
from autotune.runtime.groups import Groups
from workloads.cluster import load_cluster

torch.set_num_threads(1)
control = start_control()
rank, size = control.rank, control.size


def tell(case: str, *, ok: bool) -> None:
    verdicts = control.gather(ok)
    if verdicts is not None:
        sys.stdout.write(json.dumps({"case": case, "ok": all(verdicts)}) + "\n")


def allreduce(group: dist.ProcessGroup, *tensors: torch.Tensor) -> None:
    for work in [group.allreduce([tensor], dist.AllreduceOptions()) for tensor in tensors]:
        work.wait()


for cluster_name in ("this-machine", "mixed4"):
    cluster = load_cluster(cluster_name).for_ranks(size)
    groups = Groups(control, cluster)
    for transport in ("gloo", "mpi"):
        where = f"{transport} on {cluster_name}"
        with groups.open(transport, timeout_s=30) as group:
            for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
                for length in (1, 3, 1000, 70_001):
                    x = torch.full((length,), float(rank + 1), dtype=dtype)
                    allreduce(group, x)
                    tell(f"{where}: sum of {length} {dtype}", ok=bool((x == size * (size + 1) / 2).all()))
            many = [torch.full((n,), float(n * rank)) for n in range(1, 21)]
            allreduce(group, *many)
            total = size * (size - 1) / 2
            tell(f"{where}: many in flight", ok=all(bool((x == n * total).all()) for n, x in enumerate(many, start=1)))
            options = dist.BroadcastOptions()
            options.rootRank, options.rootTensor = size - 1, 0
            y = torch.arange(5.0) * (rank + 1)
            group.broadcast([y], options).wait()
            tell(f"{where}: broadcast", ok=bool((y == torch.arange(5.0) * size).all()))
            if cluster.is_emulated and size > 1:
                z = torch.zeros(500_000)
                wire_s = 2 * (size - 1) / size * z.nbytes / 125e6
                control.share(None)
                begun = time.perf_counter()
                allreduce(group, z, z.clone())
                took_s = time.perf_counter() - begun
                tell(f"{where}: two at once take as long as their bytes together", ok=took_s > 2 * wire_s * 0.99)
            del group
control.share(None)
