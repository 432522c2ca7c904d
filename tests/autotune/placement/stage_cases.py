"""Small random models and clusters, and all plans with stages for them: what a search is held against."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np

from autotune.results.store.record import WorkloadInfo
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.workloads.cluster import Cluster, Device, Host
from autotune.workloads.graph import Edge, Op, OpGraph, Parameter
from autotune.workloads.model_stages import StageCuts
from autotune.workloads.plan import BatchPlan, PipelinePlan, Plan
from autotune.workloads.topology import Fabric, Link

MB = 10**6


def model(draw: random.Random, num_ops: int) -> tuple[OpGraph, StageCuts]:
    """A chain of layers of unlike sizes; a stage may begin at each."""
    ops = tuple(
        Op(
            name=f"op{index}",
            kind="Linear",
            num_calls=1,
            flops_per_sample=draw.uniform(0.2, 2) * 1e9,
            fixed_bytes=0.0,
            bytes_per_sample=0.0,
            param_bytes=int(draw.uniform(0.1, 10) * MB),
            backward_factor=2.0,
            saved_bytes_per_sample=draw.uniform(0.1, 2) * MB,
            output_bytes_per_sample=draw.uniform(0.1, 2) * MB,
            factor_shapes=((10, 10),),
        )
        for index in range(num_ops)
    )
    edges = tuple(
        Edge(source=a.name, target=b.name, bytes_per_sample=a.output_bytes_per_sample)
        for a, b in itertools.pairwise(ops)
    )
    graph = OpGraph(
        ops=ops,
        saved_bytes_per_sample=sum(op.saved_bytes_per_sample for op in ops),
        held_bytes=3 * sum(op.param_bytes for op in ops),
        parameters=tuple(Parameter(name=f"{op.name}.w", op=op.name, num_bytes=op.param_bytes) for op in ops),
        edges=edges,
        edges_from="stages",
    )
    streams = (0.0, *(edge.bytes_per_sample for edge in edges))
    return graph, StageCuts(first_ops=tuple(range(num_ops)), stream_bytes=streams, min_samples=1)


def cluster(draw: random.Random, num_devices: int, memory_bytes: float | None) -> Cluster:
    """Hosts of one or two devices of unlike speeds, memories and links."""
    speeds = [draw.choice((1e9, 2e9, 5e9)) for _ in range(2)]
    hosts, left = [], num_devices
    while left:
        size = min(left, draw.choice((1, 2, 2)))
        own = [draw.randrange(2) for _ in range(size)] if draw.random() < 0.3 else [draw.randrange(2)] * size
        devices = tuple(
            Device(
                name=f"kind{kind}",
                flops_per_s=speeds[kind],
                launch_s=0.002,
                memory_bytes=None if memory_bytes is None else memory_bytes * (1 + kind),
            )
            for kind in own
        )
        speed = draw.choice((2, 10, 100)) * MB
        inside = Link(up_bytes_per_s=20 * speed, down_bytes_per_s=20 * speed)
        hosts.append(
            Host(
                name=f"host{len(hosts)}",
                devices=devices,
                link=Link(up_bytes_per_s=speed, down_bytes_per_s=speed, latency_s=1e-3),
                fabric=Fabric(device=inside),
            )
        )
        left -= size
    return Cluster(name="small", hosts=tuple(hosts), emulation=draw.choice(("none", "paced")))


def simulator_of(graph: OpGraph, on: Cluster, global_batch: int) -> Simulator:
    info = WorkloadInfo(
        name="small",
        options={},
        fingerprint="",
        global_batch=global_batch,
        param_bytes=graph.param_bytes,
        flops_per_sample=graph.flops_per_sample,
    )
    return Simulator(info, graph, cost_model(graph, on))


def every_plan(simulator: Simulator, *, runs_only: bool = False) -> Iterator[Plan]:
    """All cuts, devices, groups, shares, numbers of micro-batches; of like devices of a host, the first ones."""
    num_ops, total = len(simulator.graph.ops), simulator.info.global_batch
    counts = [count for count in range(1, total + 1) if total % count == 0]
    for groups in _assignments(simulator, most_stages=num_ops, most_degree=1 if runs_only else 4):
        for firsts in itertools.combinations(range(1, num_ops), len(groups) - 1):
            for count in counts:
                for sharing in ("split",) if runs_only else ("split", "round-robin"):
                    if sharing == "round-robin" and all(len(stage) == 1 for stage in groups):
                        continue
                    units = total // count if sharing == "split" else count
                    for shares in itertools.product(*(list(_shares(units, len(stage))) for stage in groups)):
                        yield make_plan(simulator, (0, *firsts), groups, (shares, count, sharing))


def make_plan(simulator, firsts, groups, how) -> Plan:
    """`how`: shares of each stage's replicas, micro-batches, sharing."""
    shares, count, sharing = how
    total = simulator.info.global_batch
    samples = [0] * len(simulator.costs.cluster.devices)
    unit = count if sharing == "split" else total // count
    for stage, own in zip(groups, shares, strict=True):
        for ranks, share in zip(stage, own, strict=True):
            for rank in ranks:
                samples[rank] = share * unit
    pipeline = PipelinePlan(
        first_ops=firsts,
        stage_ranks=tuple(tuple(rank for ranks in stage for rank in ranks) for stage in groups),
        micro_batches=count,
        group_sizes=tuple(tuple(len(ranks) for ranks in stage) for stage in groups),
        sharing=sharing,
    )
    return Plan(batch=BatchPlan(samples=tuple(samples)), pipeline=pipeline)


def _shares(units: int, num: int) -> Iterator[tuple[int, ...]]:
    """Positive shares of so many replicas."""
    for cuts in itertools.combinations(range(1, units), num - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, units)))


def _assignments(simulator: Simulator, *, most_stages: int, most_degree: int):
    devices, hosts = simulator.costs.cluster.devices, simulator.costs.cluster.host_of_rank
    island = [(hosts[rank], device) for rank, device in enumerate(devices)]
    size, seen = len(devices), set()
    for stage_of in itertools.product(range(-1, min(size, most_stages)), repeat=size):
        used = {stage for stage in stage_of if stage >= 0}
        if not used or used != set(range(len(used))):
            continue
        key = tuple(sorted((str(island[rank]), stage) for rank, stage in enumerate(stage_of)))
        if key in seen:
            continue
        seen.add(key)
        members = [[rank for rank in range(size) if stage_of[rank] == stage] for stage in sorted(used)]
        yield from itertools.product(*(list(_groupings(ranks, island, most_degree)) for ranks in members))


def _groupings(ranks, island, most_degree):
    """Divided into groups of 1, 2 or 4 of one island; like devices are interchangeable."""
    if not ranks:
        yield ()
        return
    first, rest = ranks[0], ranks[1:]
    for size in (1, 2, 4):
        mates = [rank for rank in rest if island[rank] == island[first]][: size - 1]
        if size <= most_degree and len(mates) == size - 1:
            left = [rank for rank in rest if rank not in mates]
            for others in _groupings(left, island, most_degree):
                yield ((first, *mates), *others)


class LeastSteps:
    """What no step of a plan can be below: the work of its busiest rank. Cheap, so that brute force simulates few plans."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._sums: dict[tuple[int, float], np.ndarray] = {}
        self._limits = [device.memory_bytes for device in simulator.costs.cluster.devices]
        ops = simulator.graph.ops
        self._params = np.concatenate([[0.0], np.cumsum([op.param_bytes for op in ops])])
        self._saved = np.concatenate([[0.0], np.cumsum([op.saved_bytes_per_sample for op in ops])])
        self._held = simulator.graph.held_bytes / simulator.graph.param_bytes

    def least_s(self, plan: Plan) -> float:
        """Infinite where a device cannot even hold one micro-batch."""
        pipeline, least_s = plan.pipeline, 0.0
        micro = pipeline.micro_samples(plan.batch.samples)
        ends = (*pipeline.first_ops[1:], len(self._simulator.graph.ops))
        for groups, first, end in zip(pipeline.groups(), pipeline.first_ops, ends, strict=True):
            for ranks in groups:
                rank, degree = ranks[0], len(ranks)
                sums = self._table(degree, micro[rank])[rank]
                number = plan.batch.samples[rank] / micro[rank]
                least_s = max(least_s, number * float(sums[end] - sums[first]))
                held = self._held * (self._params[end] - self._params[first])
                held += micro[rank] * (self._saved[end] - self._saved[first])
                if self._limits[rank] is not None and held / degree > self._limits[rank]:
                    return float("inf")
        return least_s

    def _table(self, degree: int, samples: float) -> np.ndarray:
        if (degree, samples) not in self._sums:
            size = len(self._limits)
            forward_s, backward_s = self._simulator.costs.passes(np.full(size, samples), degree)
            both = forward_s + backward_s
            self._sums[degree, samples] = np.concatenate([np.zeros((size, 1)), np.cumsum(both, axis=1)], axis=1)
        return self._sums[degree, samples]
