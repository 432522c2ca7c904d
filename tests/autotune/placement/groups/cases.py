"""Random models and clusters for placement searches."""

from __future__ import annotations

import random

from autotune.placement.groups.device_sets import device_sets
from autotune.placement.groups.op_groups import group_ops
from autotune.placement.groups.problem import Choices, PlacementProblem
from autotune.results.store.record import WorkloadInfo
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.workloads.cluster import Cluster, Device, Host
from autotune.workloads.graph import Edge, Op, OpGraph, Parameter
from autotune.workloads.tensor_graph.operations import operations_of
from autotune.workloads.topology import Link

MB = 10**6
BATCH = 16


def random_graph(generator: random.Random, num_ops: int) -> OpGraph:
    """Some ops with most of the parameters, some with most of the arithmetic; now and then a branch."""
    ops = tuple(
        Op(
            name=f"op{index}",
            kind="Linear",
            num_calls=1,
            flops_per_sample=generator.choice([1e6, 1e7, 1e8]),
            fixed_bytes=generator.choice([0.0, 1e5]),
            bytes_per_sample=1e4,
            param_bytes=int(generator.choice([1e4, 1e6, 2e7])),
            backward_factor=2.0,
            saved_bytes_per_sample=1e4,
        )
        for index in range(num_ops)
    )
    pairs = [(index, index + 1) for index in range(num_ops - 1)]
    pairs += [(a, a + 2) for a in range(num_ops - 2) if generator.random() < 0.2]
    edges = tuple(
        Edge(source=f"op{a}", target=f"op{b}", bytes_per_sample=generator.choice([1e3, 1e4, 1e5])) for a, b in pairs
    )
    parameters = tuple(Parameter(name=f"{op.name}.weight", op=op.name, num_bytes=op.param_bytes) for op in ops)
    return OpGraph(
        ops=ops,
        saved_bytes_per_sample=1e4 * num_ops,
        parameters=parameters,
        edges=edges,
        held_bytes=3 * sum(op.param_bytes for op in ops),
    )


def random_cluster(generator: random.Random, sizes: tuple[int, ...]) -> Cluster:
    """A host for each size, of devices of one speed behind one link."""
    hosts = []
    for number, size in enumerate(sizes):
        speed = generator.choice([25e6, 125e6, 1e9])
        device = Device(
            name=f"device{number}",
            flops_per_s=generator.choice([1e10, 2e10, 5e10]),
            memory_bytes_per_s=generator.choice([1e10, 3e10]),
            memory_bytes=generator.choice([None, None, 120 * MB]),
        )
        link = Link(up_bytes_per_s=speed, down_bytes_per_s=speed, latency_s=generator.choice([0.0, 1e-4]))
        hosts.append(Host(name=f"host{number}", devices=(device,) * size, link=link))
    return Cluster(name="random", hosts=tuple(hosts), emulation=generator.choice(["paced", "none"]))


def simulator_of(graph: OpGraph, cluster: Cluster, global_batch: int = BATCH) -> Simulator:
    info = WorkloadInfo(
        name="random",
        options={},
        fingerprint="",
        global_batch=global_batch,
        param_bytes=graph.param_bytes,
        flops_per_sample=graph.flops_per_sample,
    )
    return Simulator(info, graph, cost_model(graph, cluster), operations=operations_of(graph))


def random_simulator(seed: int) -> Simulator:
    generator = random.Random(seed)
    sizes = generator.choice([(1, 1), (2, 1), (1, 1, 1), (2, 2)])
    return simulator_of(random_graph(generator, generator.randint(4, 9)), random_cluster(generator, sizes))


def random_problem(seed: int, simulations: int, *, num_groups: int = 4, num_sets: int = 6) -> PlacementProblem:
    """So many groups and sets that all assignments can be simulated."""
    simulator = random_simulator(seed)
    assert simulator.operations is not None
    micro_batches = random.Random(f"{seed}/micro").choice([1, 1, 2, 4])
    groups = group_ops(simulator.graph, simulator.operations, simulator.costs, BATCH, num_groups)
    sets = device_sets(simulator.costs, BATCH, micro_batches, num_sets)
    choices = Choices(groups=groups, sets=sets, micro_batches=micro_batches)
    return PlacementProblem(simulator=simulator, choices=choices, most_simulations=simulations)
