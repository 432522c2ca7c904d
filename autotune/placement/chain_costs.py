"""Costs of the ops of a chain on each device, for one micro-batch: the input of every search for a cut into stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.simulate.cost_tables import Costs, held_bytes
from autotune.simulate.pipeline import boundary_bytes, pass_costs
from autotune.simulate.task_graph import Floats
from autotune.workloads.blocks import BACKWARD, FORWARD, INPUT, WEIGHT, Block, BlockGraph
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import OpGraph
from autotune.workloads.pass_names import pass_name
from autotune.workloads.topology import Place


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCosts:
    """Of one micro-batch. Rows are devices, columns ops."""

    forward_s: Floats
    input_s: Floats
    """Backward: gradients of the inputs."""
    weight_s: Floats
    """Backward: gradients of the weights."""
    boundary_bytes: Floats
    """Per op: bytes sent to a stage that begins there; backward returns as many bytes of gradients."""
    saved_bytes: Floats
    """Per op: held from forward to backward."""
    held_bytes: Floats
    """Per op: parameters, gradients, optimizer state."""
    memory_bytes: tuple[float, ...]
    """Of each device, without what every plan holds; infinite: no limit."""
    latency_s: Floats
    """From device to device."""
    seconds_per_byte: Floats

    @property
    def num_devices(self) -> int:
        return len(self.memory_bytes)

    @property
    def num_ops(self) -> int:
        return len(self.saved_bytes)

    def work_s(self, device: int) -> Floats:
        """Forward and backward of each op."""
        work: Floats = self.forward_s[device] + self.input_s[device] + self.weight_s[device]
        return work

    def link_s(self, source: int, target: int, first_op: int) -> float:
        if source == target:
            return 0.0
        return float(self.latency_s[source, target]) + self.busy_s(source, target, first_op)

    def busy_s(self, source: int, target: int, first_op: int) -> float:
        """Seconds that the transfer occupies the link."""
        return float(self.boundary_bytes[first_op] * self.seconds_per_byte[source, target])


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Stages in forward order: where each begins, and on which device it runs."""

    first_ops: tuple[int, ...]
    devices: tuple[int, ...]


def stage_costs(graph: OpGraph, costs: Costs, samples: float) -> StageCosts:
    """Costs of a micro-batch of `samples` samples."""
    passes = pass_costs(graph, costs, np.full(len(costs.cluster.devices), float(samples)))
    params = np.array([op.param_bytes for op in graph.ops], np.float64)
    share = graph.held_bytes / graph.param_bytes if graph.param_bytes else 0.0
    boundary = [0.0, *(boundary_bytes(graph, first) for first in range(1, len(graph.ops)))]
    latency_s, per_byte_s = device_links(costs.cluster)
    constant, _ = held_bytes(graph, costs)
    return StageCosts(
        forward_s=passes[FORWARD],
        input_s=passes[INPUT],
        weight_s=passes[WEIGHT],
        boundary_bytes=np.array(boundary) * samples,
        saved_bytes=np.array([op.saved_bytes_per_sample for op in graph.ops]) * samples,
        held_bytes=params * share,
        memory_bytes=tuple(
            max((device.memory_bytes or math.inf) - taken, 0.0)
            for device, taken in zip(costs.cluster.devices, constant.tolist(), strict=True)
        ),
        latency_s=latency_s,
        seconds_per_byte=per_byte_s,
    )


def at_cuts(costs: StageCosts, first_ops: Sequence[int]) -> StageCosts:
    """The costs with stages that begin at these ops only (the first is 0): the ops between two of them are merged."""
    starts = np.array(first_ops)

    def summed(table: Floats) -> Floats:
        total: Floats = np.add.reduceat(table, starts, axis=-1)
        return total

    return replace(
        costs,
        forward_s=summed(costs.forward_s),
        input_s=summed(costs.input_s),
        weight_s=summed(costs.weight_s),
        saved_bytes=summed(costs.saved_bytes),
        held_bytes=summed(costs.held_bytes),
        boundary_bytes=costs.boundary_bytes[starts],
    )


def cut_blocks(costs: StageCosts, cut: Cut) -> BlockGraph:
    """The blocks of a cut. Where several boundaries lie between one pair of devices, each pays the most expensive of them."""
    if len(set(cut.first_ops)) != len(cut.first_ops) or cut.first_ops[0] != 0 or len(cut.devices) != len(cut.first_ops):
        raise SpecError(
            f"stages begin at ops {cut.first_ops} on devices {cut.devices}: the first at 0, each on a device"
        )
    ends = (*cut.first_ops[1:], costs.num_ops)
    stages = list(zip(cut.first_ops, ends, cut.devices, strict=True))
    blocks: list[Block] = []
    for number, (first, end, device) in enumerate(stages):
        saved = float(costs.saved_bytes[first:end].sum())
        after = (blocks[-1].name,) if blocks else ()
        seconds = float(costs.forward_s[device, first:end].sum())
        blocks.append(
            Block(name=pass_name(FORWARD, number), devices=(device,), seconds=seconds, memory=saved, after=after)
        )
    for number, (first, end, device) in reversed(list(enumerate(stages))):
        parts = (float(costs.input_s[device, first:end].sum()), float(costs.weight_s[device, first:end].sum()))
        blocks.append(
            Block(
                name=pass_name(BACKWARD, number),
                devices=(device,),
                seconds=sum(parts),
                memory=-blocks[number].memory,
                after=(blocks[-1].name,),
                split=parts if all(parts) else None,
            )
        )
    return BlockGraph(
        num_devices=costs.num_devices,
        memory=_left(costs, stages),
        blocks=tuple(blocks),
        link_s=_link_table(costs, cut),
    )


def _left(costs: StageCosts, stages: Sequence[tuple[int, int, int]]) -> tuple[float, ...]:
    """Memory of each device that is free for activations."""
    held = [0.0] * costs.num_devices
    for first, end, device in stages:
        held[device] += float(costs.held_bytes[first:end].sum())
    return tuple(max(limit - taken, 0.0) for limit, taken in zip(costs.memory_bytes, held, strict=True))


def _link_table(costs: StageCosts, cut: Cut) -> tuple[tuple[float, ...], ...]:
    table = [[0.0] * costs.num_devices for _ in range(costs.num_devices)]
    for first, source, target in zip(cut.first_ops[1:], cut.devices, cut.devices[1:], strict=False):
        for a, b in ((source, target), (target, source)):
            table[a][b] = max(table[a][b], costs.link_s(a, b, first))
    return tuple(map(tuple, table))


def device_links(cluster: Cluster) -> tuple[Floats, Floats]:
    """Latency, and seconds per byte of the slowest edge, of the path of each pair. Equal paths are followed once."""
    topology, size = cluster.topology, len(cluster.devices)
    latency_s, per_byte_s = np.zeros((size, size)), np.zeros((size, size))
    alike: dict[tuple[Place, int], list[int]] = {}
    for rank, place in enumerate(topology.places):
        own = rank if any(rank in pair for pair in topology.rank_pairs) else -1
        alike.setdefault((place, own), []).append(rank)
    groups = list(alike.values())
    for sources in groups:
        for targets in groups:
            pair = next(((a, b) for a in sources[:1] for b in targets[:2] if a != b), None)
            if pair is not None:
                chosen = np.ix_(sources, targets)
                latency_s[chosen] = topology.latency_s(*pair)
                per_byte_s[chosen] = topology.busy_s(dict.fromkeys(topology.path(*pair), 1.0))
    np.fill_diagonal(latency_s, 0.0)
    np.fill_diagonal(per_byte_s, 0.0)
    return latency_s, per_byte_s
