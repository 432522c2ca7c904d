"""A data-parallel step through parameter servers: each rank pushes its gradients as it has them and pulls the sums.

Nobody waits for the others before sending, so the order is free; the servers, equal owners, answer once all have pushed.
Servers sit on the hosts of the ranks that the plan names and share those hosts' links with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autotune.simulate.collectives import hop_latency_s, hop_loads
from autotune.simulate.costs import Costs
from autotune.simulate.data_parallel import BACKWARD, DATA, FORWARD, UPDATE, Labels, StepCosts, Units
from autotune.simulate.engine import Tasks
from autotune.simulate.labelled import LabelledTasks
from workloads.cluster import Cluster
from workloads.graph import OpGraph
from workloads.plan import Plan


def expand_server(graph: OpGraph, plan: Plan, costs: Costs, step: StepCosts, units: Units) -> tuple[Tasks, Labels]:
    """One step."""
    made, ranks, num_ops = LabelledTasks(), range(len(costs.cluster.devices)), len(graph.ops)
    pushes: list[list[int]] = [[] for _ in units.wire_bytes]
    for rank in ranks:
        made.work(DATA, rank, 0, step.data_s[rank])
        for op in range(num_ops):
            made.work(FORWARD, rank, op, step.forward_s[rank, op])
        unit = 0
        for op in reversed(range(num_ops)):
            ready = made.work(BACKWARD, rank, op, step.backward_s[rank, op])
            while unit < len(pushes) and units.ready_op[unit] >= op:
                pushes[unit].append(
                    made.send(
                        unit,
                        _loads(costs.cluster, [(rank, server) for server in plan.comm.servers], units.wire_bytes[unit]),
                        [ready],
                        rank=rank,
                        num_bytes=units.wire_bytes[unit],
                        fixed_s=units.fixed_s[unit] / 2,
                        latency_s=_latency_s(costs.cluster, rank, plan.comm.servers),
                        priority=int(units.priority[unit]),
                    )
                )
                unit += 1
    pulled: dict[int, list[int]] = {rank: [] for rank in ranks}
    for unit, pushed in enumerate(pushes):
        summed = made.meet(pushed)
        for rank in ranks:
            pulled[rank].append(
                made.send(
                    unit,
                    _loads(costs.cluster, [(server, rank) for server in plan.comm.servers], units.wire_bytes[unit]),
                    [summed],
                    rank=rank,
                    num_bytes=units.wire_bytes[unit],
                    fixed_s=units.fixed_s[unit] / 2,
                    latency_s=_latency_s(costs.cluster, rank, plan.comm.servers),
                    priority=int(units.priority[unit]),
                )
            )
    for rank in ranks:
        made.work(UPDATE, rank, 0, step.update_s[rank], pulled[rank])
    return made.arrays()


def _loads(cluster: Cluster, hops: Sequence[tuple[int, int]], num_bytes: float) -> list[tuple[int, float]]:
    """Equal parts from or to every server, as (link, bytes)."""
    total: Counter[int] = Counter()
    for source, target in hops:
        for load in hop_loads(cluster.host_of_rank, source, target, num_bytes / len(hops)):
            if cluster.hosts[load.host].link is not None:
                total[2 * load.host] += load.up_bytes  # type: ignore[assignment]
                total[2 * load.host + 1] += load.down_bytes  # type: ignore[assignment]
    return [(link, part) for link, part in total.items() if part > 0]


def _latency_s(cluster: Cluster, rank: int, servers: Sequence[int]) -> float:
    return max(hop_latency_s(cluster, rank, server) for server in servers)
