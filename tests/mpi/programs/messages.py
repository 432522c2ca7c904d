"""Run by mpirun: the contract of messages from rank to rank, plain and paced. Prints {"case", "ok"} from rank 0."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from autotune.runtime.control.start import start_control
from autotune.runtime.probe.timed_collectives import AllGather, AllReduce, Broadcast, GroupMember, Message
from autotune.runtime.transport.groups import Groups
from autotune.workloads.cluster import load_cluster

BYTES_PER_S, LATENCY_S = 50e6 / 8, 0.01
CLUSTER = """
emulation = "paced"
[device.any]
flops = "1 GFLOP/s"
""" + "".join(
    f'[[host]]\nname = "h{n}"\ndevices = ["any"]\nuplink = "{up} Mbit/s"\ndownlink = "50 Mbit/s"\nlatency = "10 ms"\n'
    for n, up in enumerate((50, 100, 100))
)

torch.set_num_threads(1)
control = start_control()
rank, size = control.rank, control.size
right, left = (rank + 1) % size, (rank - 1) % size


def report(case: str, *, ok: bool) -> None:
    verdicts = control.gather(ok)
    if verdicts is not None:
        sys.stdout.write(json.dumps({"case": case, "ok": all(verdicts)}) + "\n")


def values(sender: int, length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(length) % 11 + sender).to(dtype)


def around(group: dist.ProcessGroup, length: int, dtype: torch.dtype) -> bool:
    """Every rank sends to the right and receives from the left; receives are posted first."""
    received = torch.zeros(length, dtype=dtype)
    arriving = group.recv([received], left, 5)
    group.send([values(rank, length, dtype)], right, 5).wait()
    arriving.wait()
    return torch.equal(received, values(left, length, dtype))


def by_tag(group: dist.ProcessGroup) -> bool:
    """Tags distinguish two messages in flight, in whatever order they are waited for."""
    first, second = torch.zeros(10), torch.zeros(1000)
    arriving = [group.recv([second], left, 8), group.recv([first], left, 7)]
    sent = [group.send([values(rank, 10)], right, 7), group.send([values(rank, 1000)], right, 8)]
    for work in (*arriving, *sent):
        work.wait()
    return torch.equal(first, values(left, 10)) and torch.equal(second, values(left, 1000))


def amid_collectives(group: dist.ProcessGroup) -> bool:
    """A message that no rank waits for yet does not hold up an all-reduce."""
    late = torch.zeros(3)
    arriving = group.recv([late], left, 9)
    total = torch.full((100,), float(rank))
    group.allreduce([total], dist.AllreduceOptions()).wait()
    group.send([values(rank, 3)], right, 9).wait()
    arriving.wait()
    return bool((total == size * (size - 1) / 2).all()) and torch.equal(late, values(left, 3))


def takes_its_time(group: dist.ProcessGroup) -> bool:
    """Latency and bytes over the slower of uplink and downlink; the sender is free before the message has arrived."""
    length = 20_000
    control.share(None)
    begun = time.monotonic()
    if rank == 0:
        group.send([values(0, length)], 1, 6).wait()
        took_s, least_s = time.monotonic() - begun, 4 * length / BYTES_PER_S
    elif rank == 1:
        group.recv([torch.zeros(length)], 0, 6).wait()
        took_s, least_s = time.monotonic() - begun, 4 * length / BYTES_PER_S + LATENCY_S - 0.002  # rank 0 began before
    else:
        took_s = least_s = 0.0
    return took_s >= least_s * 0.98


path = Path(sys.argv[1]) / f"paced-{rank}.toml"
path.write_text(CLUSTER)
for name in ("this-machine", str(path)):
    cluster = load_cluster(name).for_ranks(size)
    groups = Groups(control, cluster)
    where = "paced" if cluster.is_emulated else "plain"
    with groups.open("gloo", timeout_s=30) as group:
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
            for length in (1, 1000, 20_001):
                report(f"{where}: {length} {dtype}", ok=around(group, length, dtype))
        report(f"{where}: by tag", ok=by_tag(group))
        report(f"{where}: amid collectives", ok=amid_collectives(group))
        if cluster.is_emulated:
            report(f"{where}: takes its time", ok=takes_its_time(group))
        member = GroupMember(group=group, device=torch.device("cpu"))
        for exchange in (
            Message(member, 0, size - 1),
            AllReduce(member),
            AllGather(member),
            Broadcast(member),
        ):
            checked = exchange.check(exchange.size_of(4096)) == 0
            took_s = exchange.loop(exchange.size_of(4096), 2)
            report(f"{where}: {type(exchange).__name__}", ok=checked and took_s >= 0)
            del exchange
        del group, member
control.share(None)
