"""A GPT whose vocabulary is on all devices, and its schedules: what `pipeline_run` runs.

The M shape with an output layer: blocks on all devices at both ends of the chain and where it turns. 1F1B and GPipe are
the chain's, with those blocks where their micro-batch meets them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from autotune.runtime.placed.parts import Source
from autotune.runtime.placed.stages import (
    Assembly,
    Chain,
    StageBlocks,
    add_chain,
    chain_blocks,
    parameter_names,
)
from autotune.runtime.placed.vocabulary import Vocabulary
from autotune.schedule.classic import classic_orders, find_chain
from autotune.schedule.search import search
from autotune.schedule.timing import Order, order_by, timetable
from autotune.workloads.blocks import Block, BlockGraph, Timetable
from autotune.workloads.capture import LOSS, MODEL, capture
from autotune.workloads.cluster import Cluster
from autotune.workloads.graph import Op, OpGraph
from autotune.workloads.models.base import SupervisedWorkload
from autotune.workloads.models.gpt import GptSize, Positions, adamw, gpt, synthetic_text
from tests.autotune.runtime.placed.block_costs import priced
from tests.autotune.schedule.shapes import m_shape, v_shape

SIZE = GptSize(vocabulary=2048, num_tokens=16, width=64, num_heads=4, num_blocks=8)
TABLE = "0.token.weight"
ROOM = 2
"""Micro-batches that a device may hold besides as many as there are devices, as in the shapes: GPipe holds them all."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all schedules have in common."""

    workload: SupervisedWorkload
    costs: OpGraph
    cluster: Cluster
    num_microbatches: int

    @property
    def num(self) -> int:
        return len(self.cluster.devices)


def workload_of(global_batch: int) -> SupervisedWorkload:
    tokens = {"vocabulary": SIZE.vocabulary, "num_tokens": SIZE.num_tokens, "num_samples": 4 * global_batch}
    return SupervisedWorkload(
        name="gpt, large vocabulary",
        global_batch=global_batch,
        build_model=partial(gpt, SIZE),
        build_dataset=partial(synthetic_text, **tokens),
        build_optimizer=partial(adamw, lr=1e-3),
    )


def costs_of(workload: SupervisedWorkload) -> OpGraph:
    torch.manual_seed(0)
    model, tensors = workload.model(), workload.dataset().tensors
    return capture(model, lambda n: workload.loss(model, tuple(one[:n] for one in tensors)))


def shape(num: int) -> BlockGraph:
    """M, and the output layer where the chain turns, forward and backward in one block."""
    graph, turn = m_shape(num), num - 1
    output = Block(name="output", devices=tuple(range(num)), seconds=1.0, after=(f"f{turn}",))
    blocks = [replace(block, after=("output",)) if block.name == f"b{turn}" else block for block in graph.blocks]
    return replace(graph, blocks=(*blocks, output))


def assemble(setting: Setting, model: nn.Sequential) -> Assembly:
    """The tokens' table on all devices, tied; everything else in stages."""
    ops = {op.name: op for op in setting.costs.ops}
    head = str(len(model) - 1)
    assembly, num, names = Assembly(), setting.num, parameter_names(model)
    table = Vocabulary(name=TABLE, weight=model.get_parameter(TABLE))
    ends, turn = StageBlocks(forward="first", backward="last"), StageBlocks(forward="output", backward="output")
    source = table.add_embedding(assembly, "embed", ends, ops=[ops["0.token"]])
    modules = [Positions(model[0]), *model[1:-1]]
    per_module = [[op for op in ops.values() if _is_in(op, index)] for index in range(len(modules))]
    add_chain(
        assembly,
        setting.workload,
        Chain(
            modules=modules,
            first=(0, *(1 + SIZE.num_blocks * stage // num for stage in range(1, num))),
            blocks=chain_blocks(num),
            names=names,
            source=source,
            loss_weight=0,
            ops=per_module,
        ),
    )
    output_ops = [op for name, op in ops.items() if name in (head, LOSS, MODEL)]
    table.add_loss(assembly, "output", turn, Source(part=f"s{num - 1}"), ops=output_ops)
    return assembly


def _is_in(op: Op, module: int) -> bool:
    return op.name.split(".")[0] == str(module) and op.name != "0.token"


def links(setting: Setting) -> tuple[tuple[float, ...], ...]:
    """What a stream of one micro-batch takes from device to device."""
    cluster, num = setting.cluster, setting.num
    samples = setting.workload.global_batch / setting.num_microbatches
    num_bytes = samples * SIZE.num_tokens * SIZE.width * 4

    def seconds(a: int, b: int) -> float:
        ends = cluster.hosts[cluster.host_of_rank[a]].link, cluster.hosts[cluster.host_of_rank[b]].link
        if a == b or None in ends:
            return 0.0
        up, down = ends
        assert up is not None
        assert down is not None
        return cluster.topology.latency_s(a, b) + num_bytes / min(up.up_bytes_per_s, down.down_bytes_per_s)

    return tuple(tuple(seconds(a, b) for b in range(num)) for a in range(num))


def tables_of(setting: Setting, time_s: float) -> dict[str, Timetable]:
    """The schedules that are compared."""
    torch.manual_seed(0)
    assembly = assemble(setting, setting.workload.model())
    samples = setting.workload.global_batch / setting.num_microbatches
    devices = setting.cluster.devices
    program = assembly.program(shape(setting.num))
    held = max(block.memory for block in priced(program, assembly.ops, devices, samples).blocks)
    memory = ((setting.num + ROOM) * held,) * setting.num
    graph = priced(program, assembly.ops, devices, samples, memory=memory, link_s=links(setting))
    found = {"searched": search(graph, setting.num_microbatches, time_s=time_s).table}
    for name in ("1f1b", "gpipe"):
        table = timetable(graph, setting.num_microbatches, around_chain(graph, name, setting.num_microbatches))
        assert table is not None
        found[name] = table
    return found


def around_chain(graph: BlockGraph, name: str, num_microbatches: int) -> Order:
    """A chain's classic order, the blocks on all devices put where their micro-batch meets them."""
    num = graph.num_devices
    seconds = {block.name: block.seconds for block in graph.blocks}
    chain = v_shape(num)
    priced_chain = replace(
        chain,
        blocks=tuple(replace(block, seconds=seconds[block.name]) for block in chain.blocks),
        memory=(float(num_microbatches),) * num,
        link_s=graph.link_s,
    )
    line = find_chain(priced_chain)
    assert line is not None
    orders = dict(classic_orders(priced_chain, line, num_microbatches))
    table = timetable(priced_chain, num_microbatches, orders[name])
    assert table is not None
    starts = {(slot.block, slot.microbatch): slot.start_s for slot in table.slots()}
    before = {"first": ("f0", 0.0, -1), "output": (f"f{num - 1}", 1.0, 0), "last": ("b0", 1.0, 0)}

    def when(block: int, microbatch: int) -> float:
        own = graph.blocks[block].name
        near, share, early = before.get(own, (own, 0.0, 0))
        return starts[near, microbatch] + share * seconds[near] + early * 1e-9

    return order_by(graph, num_microbatches, when)
