"""Models cut into stages on mixed devices: what the realistic rows of `tests.benchmarks.schedules` are made of.

Costs are stated, not measured: operations and bytes are counted from the model, devices and links are those of a datasheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from autotune.jobs.context import capture_workload, with_dataflow
from autotune.placement.chain_costs import StageCosts, at_cuts, cut_blocks, stage_costs
from autotune.placement.chain_cut import best_cut, cuts
from autotune.runtime.placed.find_cuts import stage_cuts
from autotune.simulate.cost_sources import cost_model
from autotune.workloads.blocks import BlockGraph
from autotune.workloads.cluster import Cluster, Device, Host, Link
from autotune.workloads.graph import Op, OpGraph, Parameter
from autotune.workloads.model_stages import with_streams
from autotune.workloads.models.base import SupervisedWorkload
from autotune.workloads.models.gpt import SIZES, adamw, gpt, synthetic_text
from autotune.workloads.registry import load_workload

KINDS = ((4.0, 16e9), (2.0, 12e9), (1.0, 8e9), (0.5, 6e9))
"""Devices of a cluster: 10^12 operations a second, bytes of memory before it is made to bind."""
ROOM = 0.75
"""Of the micro-batches that 1F1B would hold on a device, rounded up: memory that binds."""
GPT_BLOCKS = 48
"""GPT-2 small's width at GPT-2 XL's depth: 12 blocks beside a head that costs as much as five of them leave no 32 stages."""
_MOVES = 6
"""Cuts beside the first that are judged by schedules, which take seconds each for many stages."""
Costs = Callable[[Cluster], Callable[[int], StageCosts]]


def cut_model(name: str, num_devices: int, num: int) -> BlockGraph:
    """The best cut into as many stages as devices, on memory of which 1F1B would need more."""
    of = {"gpt": gpt_costs, "resnet": resnet_costs}[name]()(_cluster(num_devices))
    cut = _cut(of, num_devices, num)
    stages = len(cut.blocks) // 2
    memory = list(cut.memory)
    for stage, block in enumerate(cut.blocks[:stages]):
        memory[block.devices[0]] = math.ceil(ROOM * (stages - stage)) * block.memory
    return BlockGraph(num_devices=cut.num_devices, memory=tuple(memory), blocks=cut.blocks, link_s=cut.link_s)


def _cut(of: Callable[[int], StageCosts], num_stages: int, num: int) -> BlockGraph:
    """Judged by schedules too, but for 32 stages: there the portfolio alone takes half a minute for each."""
    if num_stages < 32:
        return best_cut(of, (num,), max_moves=_MOVES, num_stages=num_stages).graph
    return cut_blocks(of(num), cuts(of(num), num, num_stages)[0])


@cache
def resnet_costs() -> Costs:
    """ResNet-18 on 224 x 224 pixels, cut between any two ops; what skips a cut is sent, too."""
    workload = load_workload("resnet", {"size": "large"})
    graph = with_dataflow(capture_workload(workload, 0), workload, 0)
    return partial(_costs, graph, workload.global_batch, tuple(range(len(graph.ops))))


@cache
def gpt_costs() -> Costs:
    """Captured with one block, which all others are copies of; cut between modules, as a job cuts it."""
    size = replace(SIZES["large"], num_blocks=1, num_samples=8, global_batch=4)
    text = {"vocabulary": size.vocabulary, "num_tokens": size.num_tokens, "num_samples": size.num_samples}
    workload = SupervisedWorkload(
        name="gpt",
        global_batch=4,
        build_model=partial(gpt, size),
        build_dataset=partial(synthetic_text, **text),
        build_optimizer=partial(adamw, lr=1e-3),
    )
    shallow = _untied(capture_workload(workload, 0))
    places = stage_cuts(workload, shallow, 0)
    assert places is not None
    graph, first = deepened(with_streams(shallow, places), places.first_ops, GPT_BLOCKS)
    return partial(_costs, graph, 128, first)


def _untied(graph: OpGraph) -> OpGraph:
    """With a head of its own, whose backward pass has two halves like any other's: a tied layer's weights count as the embedding's."""
    head = max(place for place, op in enumerate(graph.ops) if op.factor_shapes)
    outputs, inputs = graph.ops[head].factor_shapes[0]
    own = replace(graph.ops[head], param_bytes=4 * outputs * inputs)
    return replace(graph, ops=(*graph.ops[:head], own, *graph.ops[head + 1 :]))


def deepened(graph: OpGraph, first_ops: tuple[int, ...], num_blocks: int) -> tuple[OpGraph, tuple[int, ...]]:
    """The graph with its second module so many times, and where its modules begin then."""
    begin, end = first_ops[1], first_ops[2]
    block, length = graph.ops[begin:end], end - begin
    copies = [_copy(op, number) for number in range(num_blocks - 1) for op in block]
    ops = (*graph.ops[:end], *copies, *graph.ops[end:])
    into = next(edge for edge in graph.edges if edge.target == block[0].name)
    edges = [
        replace(into, source=ops[place - 1].name, target=ops[place].name)
        for place in range(end, end + length * (num_blocks - 1), length)
    ]
    parameters = [
        Parameter(name=f"{op.name}.parameters", op=op.name, num_bytes=op.param_bytes) for op in copies if op.param_bytes
    ]
    last = next(edge for edge in graph.edges if edge.target == graph.ops[end].name)
    moved = [replace(last, source=ops[end + len(copies) - 1].name) if edge is last else edge for edge in graph.edges]
    first = (
        *first_ops[:2],
        *range(end, end + len(copies), length),
        *(place + len(copies) for place in first_ops[2:]),
    )
    deeper = replace(graph, ops=ops, edges=(*moved, *edges), parameters=(*graph.parameters, *parameters))
    return deeper, first


def _copy(op: Op, number: int) -> Op:
    return replace(op, name=f"copy{number}.{op.name}")


def _costs(graph: OpGraph, batch: int, first: tuple[int, ...], cluster: Cluster) -> Callable[[int], StageCosts]:
    held = replace(graph, held_bytes=4 * graph.param_bytes)  # with gradients and Adam's two moments
    costs = cost_model(held, cluster)
    return lambda count: at_cuts(stage_costs(held, costs, max(batch / count, 1.0)), first)


def _cluster(num_devices: int) -> Cluster:
    """Hosts of up to four devices of one kind, on 1 to 10 Gbit/s."""
    hosts = []
    for index in range(0, num_devices, 4):
        speed, memory = KINDS[index // 4 % len(KINDS)]
        device = Device(
            name=f"kind{index // 4 % len(KINDS)}",
            flops_per_s=speed * 1e12,
            memory_bytes_per_s=speed * 1e11,
            launch_s=5e-6,
            memory_bytes=memory,
        )
        rate = (10e9, 5e9, 2.5e9, 1e9)[index // 4 % 4] / 8
        link = Link(up_bytes_per_s=rate, down_bytes_per_s=rate, latency_s=5e-5)
        hosts.append(Host(name=f"host{index // 4}", devices=(device,) * min(4, num_devices - index), link=link))
    return Cluster(name=f"mixed{num_devices}", hosts=tuple(hosts))
