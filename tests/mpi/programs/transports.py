"""Run by mpirun: the contract of a transport and its collectives, for each, plain and paced. Prints {"case", "ok"} from rank 0."""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist

from autotune.runtime.control.start import start_control
from autotune.runtime.transport.groups import Groups
from autotune.runtime.transport.traced_group import TracedGroup, taken
from autotune.simulate.collectives import server_shares, shard_loads
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import SpecError

CASES = (
    ("gloo", "ring"),
    ("mpi", "ring"),
    ("gloo", "shards"),
    ("gloo", "server"),
    ("gloo", "hierarchical"),
    ("gloo", "hierarchical-shards"),
)
REFUSED = (
    ("mpi", "shards", ()),
    ("mpi", "hierarchical", ()),
    ("gloo", "tree", ()),
    ("gloo", "server", ()),
    ("gloo", "server", (99,)),
)

torch.set_num_threads(1)
control = start_control()
rank, size = control.rank, control.size


def report(case: str, *, ok: bool) -> None:
    verdicts = control.gather(ok)
    if verdicts is not None:
        sys.stdout.write(json.dumps({"case": case, "ok": all(verdicts)}) + "\n")


def allreduce(group: dist.ProcessGroup, *tensors: torch.Tensor) -> None:
    for work in [group.allreduce([tensor], dist.AllreduceOptions()) for tensor in tensors]:
        work.wait()


def wire_s(collective: str, num_bytes: int) -> float:
    """What the busiest link needs, all of them being equal."""
    if collective == "server":
        loads = shard_loads(range(size), server_shares(size, SERVERS), num_bytes)
        return max(load.up_bytes for load in loads) / 125e6
    return 2 * (size - 1) / size * num_bytes / 125e6


def is_refused(groups: Groups, transport: str, collective: str, servers: tuple[int, ...]) -> bool:
    try:
        with groups.open(transport, collective=collective, servers=servers, timeout_s=30):
            return False
    except SpecError as error:
        return "use" in str(error) or "name" in str(error)


SERVERS = (size - 1,)
for cluster_name in ("this-machine", "mixed4"):
    cluster = load_cluster(cluster_name).for_ranks(size)
    groups = Groups(control, cluster)
    for transport, collective, servers in REFUSED:
        where = f"{collective} by {servers} over {transport}"
        report(f"{where} is refused", ok=is_refused(groups, transport, collective, servers))
    for transport, collective in CASES:
        where = f"{collective} over {transport} on {cluster_name}"
        is_ours = collective in {"shards", "hierarchical", "hierarchical-shards"}
        chosen = {"servers": SERVERS} if collective == "server" else {}
        with groups.open(transport, collective=collective, **chosen, timeout_s=30, traced=is_ours) as group:
            if isinstance(group, TracedGroup):
                group.recording = True
            for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
                for length in (1, 3, 1000, 70_001):
                    x = torch.full((length,), float(rank + 1), dtype=dtype)
                    allreduce(group, x)
                    report(f"{where}: sum of {length} {dtype}", ok=bool((x == size * (size + 1) / 2).all()))
            taken(group)
            many = [torch.full((n,), float(n * rank)) for n in range(1, 21)]
            allreduce(group, *many)
            total = size * (size - 1) / 2
            report(
                f"{where}: many in flight", ok=all(bool((x == n * total).all()) for n, x in enumerate(many, start=1))
            )
            noted = [delivery.num_bytes for delivery in taken(group)]
            wanted = [x.nbytes for x in many] if cluster.is_emulated or is_ours else []
            report(f"{where}: recorded", ok=noted == wanted)
            options = dist.BroadcastOptions()
            options.rootRank, options.rootTensor = size - 1, 0
            y = torch.arange(5.0) * (rank + 1)
            group.broadcast([y], options).wait()
            report(f"{where}: broadcast", ok=bool((y == torch.arange(5.0) * size).all()))
            if cluster.is_emulated and size > 1:
                z = torch.zeros(500_000)
                control.share(None)
                begun = time.perf_counter()
                allreduce(group, z, z.clone())
                took_s = max(control.share(time.perf_counter() - begun))
                report(
                    f"{where}: two at once take as long as their bytes together",
                    ok=took_s > 2 * wire_s(collective, z.nbytes) * 0.99,
                )
            del group
control.share(None)
