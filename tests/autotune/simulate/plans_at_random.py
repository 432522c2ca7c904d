"""Random plans on random clusters, drawn with a seed: predictions that a faster simulator must not change."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from autotune.results.store.record import WorkloadInfo
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.cost_tables import Costs, Lines, TransportCosts
from autotune.simulate.simulator import Simulator
from autotune.workloads.cluster import Cluster, Device, Host, Link
from autotune.workloads.graph import Op, OpGraph, Parameter
from autotune.workloads.plan import CODECS, BatchPlan, CommPlan, CompressionPlan, PipelinePlan, Plan
from autotune.workloads.split import bounds, proportional

GLOBAL_BATCH = 48
CLUSTERS = ((1, 1, 1, 1), (2, 1, 1), (3,))
"""Ranks of each host."""
CHOICES = {
    "ddp": ("none", "fp16"),
    "bucketed": ("none", "fp16", "bf16"),
    "scheduled": tuple(CODECS),
    "averaged": ("none",),
}


def simulators() -> Iterator[tuple[str, Simulator]]:
    """Costs as stated and as if profiled, links serialized and shared."""
    draw = random.Random(1)
    for ranks in CLUSTERS:
        for emulation in ("paced", "none"):
            graph, cluster = _graph(draw), _cluster(draw, ranks, emulation)
            stated = cost_model(graph, cluster)
            info = WorkloadInfo(
                name="drawn",
                options={},
                fingerprint="",
                global_batch=GLOBAL_BATCH,
                param_bytes=graph.param_bytes,
                flops_per_sample=graph.flops_per_sample,
            )
            name = f"{'+'.join(map(str, ranks))} {emulation}"
            yield f"{name} stated", Simulator(info, graph, stated)
            yield f"{name} profiled", Simulator(info, graph, _as_if_profiled(draw, stated))


def plans(simulator: Simulator, count: int, seed: int) -> list[Plan]:
    """Of all reducers, collectives, codecs and pipelines."""
    draw = random.Random(seed)
    return [_plan(draw, simulator) if number % 8 else _pipelined(draw, simulator) for number in range(count)]


def _plan(draw: random.Random, simulator: Simulator) -> Plan:
    num_ranks = len(simulator.costs.cluster.devices)
    reducer = draw.choice(("ddp", "bucketed", "bucketed", "scheduled", "scheduled", "scheduled", "averaged"))
    collective = draw.choice(("ring", "ring", "tree", "shards", "server"))
    partition_bytes = 2 ** draw.randint(10, 18)
    linear = [op.name for op in simulator.graph.ops if op.factor_shapes]
    weights = [draw.choice((0.0, 1.0, 1.0, 1.0)) * draw.uniform(0.3, 3) for _ in range(num_ranks)]
    least = bounds(num_ranks, GLOBAL_BATCH, minimum=1 if reducer == "ddp" or not any(weights) else 0)
    return Plan(
        batch=BatchPlan(samples=proportional(weights, GLOBAL_BATCH, least)),
        comm=CommPlan(
            reducer=reducer,
            transport=draw.choice(("gloo", "mpi")),
            bucket_bytes=draw.choice((2 ** draw.randint(10, 20), 25 * 2**20)),
            collective=collective,
            servers=tuple(sorted(draw.sample(range(num_ranks), 2))) if collective == "server" else (),
            partition_bytes=partition_bytes,
            credit_bytes=partition_bytes * draw.randint(1, 16),
            priority=draw.choice(("layer", "fifo")),
            crosses_steps=draw.random() < 0.5,
        ),
        compression=CompressionPlan(
            codec=draw.choice(CHOICES[reducer]),
            factors=tuple(draw.sample(linear, draw.choice((0, 0, 1, 2)))) if reducer == "scheduled" else (),
        ),
    )


def _pipelined(draw: random.Random, simulator: Simulator) -> Plan:
    num_ranks, num_ops = len(simulator.costs.cluster.devices), len(simulator.graph.ops)
    micro_batches = draw.choice((1, 2, 4))
    return Plan(
        batch=BatchPlan(samples=(GLOBAL_BATCH,) * num_ranks),
        pipeline=PipelinePlan(
            first_ops=(0, *sorted(draw.sample(range(1, num_ops), num_ranks - 1))),
            stage_ranks=tuple((rank,) for rank in range(num_ranks)),
            micro_batches=micro_batches,
            schedule=draw.choice(("gpipe", "1f1b")),
        ),
    )


def _graph(draw: random.Random) -> OpGraph:
    """Ops with two parameters, one, or none; every third a Linear layer."""
    ops, parameters = [], []
    for index in range(draw.randint(9, 14)):
        outputs, inputs = draw.randint(8, 200), draw.randint(8, 200)
        linear, bare = index % 3 == 0, index % 5 == 4
        sizes = [] if bare else [(outputs, inputs), *([(outputs,)] if draw.random() < 0.7 else [])]
        for place, shape in enumerate(sizes):
            parameters.append(
                Parameter(
                    name=f"op{index}.{place}", op=f"op{index}", num_bytes=4 * int(np.prod(shape)), shape=tuple(shape)
                )
            )
        ops.append(
            Op(
                name=f"op{index}",
                kind="Linear" if linear else "Other",
                num_calls=draw.randint(1, 3),
                flops_per_sample=2.0 * outputs * inputs * (1 if linear else draw.randint(1, 50)),
                fixed_bytes=draw.uniform(0, 1e5),
                bytes_per_sample=draw.uniform(0, 1e4),
                param_bytes=sum(4 * int(np.prod(shape)) for shape in sizes),
                backward_factor=draw.choice((0.0, 1.0, 2.0)),
                saved_bytes_per_sample=draw.uniform(0, 1e4),
                output_bytes_per_sample=draw.uniform(0, 1e4),
                factor_shapes=((outputs, inputs),) if linear and not bare else (),
            )
        )
    return OpGraph(
        ops=tuple(ops),
        saved_bytes_per_sample=sum(op.saved_bytes_per_sample for op in ops),
        parameters=tuple(parameters),
    )


def _cluster(draw: random.Random, ranks: tuple[int, ...], emulation: str) -> Cluster:
    hosts = tuple(
        Host(
            name=f"host{index}",
            devices=tuple(
                Device(
                    name=f"device{index}.{place}",
                    flops_per_s=draw.uniform(1e8, 1e9),
                    memory_bytes_per_s=draw.choice((None, 1e8)),
                    launch_s=draw.choice((0.0, 1e-5)),
                )
                for place in range(count)
            ),
            link=Link(
                up_bytes_per_s=draw.uniform(1e6, 2e7),
                down_bytes_per_s=draw.uniform(1e6, 2e7),
                latency_s=draw.choice((0.0, 1e-4)),
            ),
        )
        for index, count in enumerate(ranks)
    )
    return Cluster(name="drawn", hosts=hosts, emulation=emulation)


def _as_if_profiled(draw: random.Random, costs: Costs) -> Costs:
    size = len(costs.cluster.devices)

    def lines(fixed_s: float, slope_s: float) -> Lines:
        return Lines(
            fixed_s=np.array([draw.uniform(0, fixed_s) for _ in range(size)]),
            slope_s=np.array([draw.uniform(0, slope_s) for _ in range(size)]),
        )

    return replace(
        costs,
        whole=lines(1e-3, 1e-3),
        data=lines(1e-4, 1e-5),
        update=lines(1e-3, 0.0),
        encode={codec: lines(1e-5, 1e-9) for codec in list(CODECS)[1:]},
        decode={codec: lines(1e-5, 1e-9) for codec in list(CODECS)[1:]},
        transports={
            "gloo": TransportCosts(sizes=np.array([1e3, 1e4, 1e5]), overhead_s=np.array([1e-4, 1.5e-4, 3e-4]), slots=2),
            "mpi": TransportCosts(sizes=np.array([1e3]), overhead_s=np.array([2e-4]), slots=1),
        },
    )
