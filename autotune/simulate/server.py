"""A data-parallel step through parameter servers: each rank pushes its gradients as it has them and pulls the sums.

Nobody waits for the others before sending, so the order is free; the servers, equal owners, answer once all have pushed.
Servers sit on the hosts of the ranks that the plan names and share those hosts' links with them.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.simulate.collectives import hop_latency_s, hop_loads
from autotune.simulate.costs import Costs
from autotune.simulate.data_parallel import BACKWARD, DATA, FORWARD, UPDATE, Labels, StepCosts, Units
from autotune.simulate.engine import Tasks
from autotune.simulate.labelled import LabelledTasks
from autotune.simulate.units import as_links
from workloads.graph import OpGraph
from workloads.plan import Plan


def expand_server(graph: OpGraph, plan: Plan, costs: Costs, step: StepCosts, units: Units) -> tuple[Tasks, Labels]:
    """One step."""
    made, ranks, num_ops = LabelledTasks(), range(len(costs.cluster.devices)), len(graph.ops)

    def message(unit: int, rank: int, hops: Sequence[tuple[int, int]], after: int) -> int:
        """A unit between a rank and the servers, an equal part each."""
        num_bytes = float(units.wire_bytes[unit])
        cluster = costs.cluster
        each = [load for a, b in hops for load in hop_loads(cluster.host_of_rank, a, b, num_bytes / len(hops))]
        return made.send(
            unit,
            as_links(cluster, each),
            [after],
            rank=rank,
            num_bytes=num_bytes,
            fixed_s=units.fixed_s[unit] / 2,
            latency_s=max(hop_latency_s(cluster, a, b) for a, b in hops),
            priority=int(units.priority[unit]),
        )

    pushes: list[list[int]] = [[] for _ in units.wire_bytes]
    for rank in ranks:
        made.work(DATA, rank, 0, step.data_s[rank])
        for op in range(num_ops):
            made.work(FORWARD, rank, op, step.forward_s[rank, op])
        unit = 0
        for op in reversed(range(num_ops)):
            ready = made.work(BACKWARD, rank, op, step.backward_s[rank, op])
            while unit < len(pushes) and units.ready_op[unit] >= op:
                pushes[unit].append(message(unit, rank, [(rank, server) for server in plan.comm.servers], ready))
                unit += 1
    pulled: dict[int, list[int]] = {rank: [] for rank in ranks}
    for unit, pushed in enumerate(pushes):
        summed = made.meet(pushed)
        for rank in ranks:
            pulled[rank].append(message(unit, rank, [(server, rank) for server in plan.comm.servers], summed))
    for rank in ranks:
        made.work(UPDATE, rank, 0, step.update_s[rank], pulled[rank])
    return made.arrays()
