"""Workloads on the placements of `tests.autotune.schedule.shapes`: what each block of a shape computes here, and running it on threads."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from autotune.runtime.placed.batch_cut import BatchCut
from autotune.runtime.placed.executor import Executor, PipelineStep
from autotune.runtime.placed.parts import ROWS, Source
from autotune.runtime.placed.stages import (
    Assembly,
    Chain,
    StageBlocks,
    add_chain,
    chain_blocks,
    even_stages,
    parameter_names,
    stage_modules,
)
from autotune.runtime.placed.vocabulary import Vocabulary
from autotune.schedule.timing import timetable
from autotune.workloads.blocks import Block, BlockGraph, Timetable
from autotune.workloads.models.gpt import Positions
from autotune.workloads.workload import Workload
from tests.autotune.schedule.shapes import m_shape, nn_shape, v_shape, x_shape
from tests.gloo_ranks import on_ranks


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A model on a shape: `assemble(model)` makes its parts."""

    graph: BlockGraph
    assemble: Callable[[nn.Module], Assembly]
    num_lanes: int = 1


def v_placed(workload: Workload, num: int) -> Placed:
    def assemble(model: nn.Module) -> Assembly:
        assembly, modules = Assembly(), stage_modules(workload, model)
        first = even_stages(len(modules), num)
        add_chain(
            assembly,
            workload,
            Chain(modules=modules, first=first, blocks=chain_blocks(num), names=parameter_names(model)),
        )
        return assembly

    return Placed(graph=v_shape(num), assemble=assemble)


def x_placed(workload: Workload, num: int) -> Placed:
    """Every second piece of the batch goes the other way."""

    def assemble(model: nn.Module) -> Assembly:
        assembly, modules, names = Assembly(), stage_modules(workload, model), parameter_names(model)
        first = even_stages(len(modules), num)
        back = [StageBlocks(forward=f"rf{num - 1 - stage}", backward=f"rb{num - 1 - stage}") for stage in range(num)]
        add_chain(assembly, workload, Chain(modules=modules, first=first, blocks=chain_blocks(num), names=names))
        add_chain(assembly, workload, Chain(modules=modules, first=first, blocks=back, names=names, lane=1, prefix="r"))
        return assembly

    return Placed(graph=x_shape(num), assemble=assemble, num_lanes=2)


def m_rows(workload: Workload, num: int) -> Placed:
    """All devices share the samples of the model's first modules."""

    def assemble(model: nn.Module) -> Assembly:
        assembly, modules, names = Assembly(), stage_modules(workload, model), parameter_names(model)
        shared = [StageBlocks(forward="first", backward="last")]
        add_chain(
            assembly,
            workload,
            Chain(modules=modules[:1], first=[0], blocks=shared, names=names, prefix="all", whole=ROWS, loss_weight=0),
        )
        rest, source = modules[1:], Source(part="all0")
        add_chain(
            assembly,
            workload,
            Chain(
                modules=rest, first=even_stages(len(rest), num), blocks=chain_blocks(num), names=names, source=source
            ),
        )
        return assembly

    return Placed(graph=m_shape(num), assemble=assemble)


def nn_rows(workload: Workload, num: int) -> Placed:
    """The same, and of a module in the middle."""

    def assemble(model: nn.Module) -> Assembly:
        assembly, modules, names = Assembly(), stage_modules(workload, model), parameter_names(model)
        half, blocks = num // 2, chain_blocks(num)
        ends, middle = StageBlocks(forward="first", backward="last"), StageBlocks(forward="middle", backward="back")
        source = None
        for prefix, some, first, stages, whole in (
            ("all", modules[:2], [0], [ends], ROWS),
            ("s", modules[2:4], even_stages(2, half), blocks[:half], "sum"),
            ("mid", modules[4:5], [0], [middle], ROWS),
        ):
            add_chain(
                assembly,
                workload,
                Chain(
                    modules=some,
                    first=first,
                    blocks=stages,
                    names=names,
                    prefix=prefix,
                    source=source,
                    whole=whole,
                    loss_weight=0,
                ),
            )
            source = Source(part=assembly.parts[-1].name)
        last = modules[5:]
        first = even_stages(len(last), num - half)
        add_chain(
            assembly,
            workload,
            Chain(modules=last, first=first, blocks=blocks[half:], names=names, prefix="t", source=source),
        )
        return assembly

    return Placed(graph=nn_shape(num), assemble=assemble)


def untied(workload):
    """GPT with a head of its own, so that it can be on one device while the embedding is on all."""

    def build() -> nn.Module:
        model = workload.build_model()
        model[-1].weight = nn.Parameter(model[-1].weight.detach().clone())
        return model

    return replace(workload, build_model=build)


def m_vocabulary(workload: Workload, num: int) -> Placed:
    """GPT, its embedding by rows on all devices; head and loss on the last."""

    def assemble(model: nn.Module) -> Assembly:
        assembly, names = Assembly(), parameter_names(model)
        table = Vocabulary(name="0.token.weight", weight=model[0].token.weight)
        source = table.add_embedding(assembly, "embed", StageBlocks(forward="first", backward="last"))
        modules = [Positions(model[0]), *model[1:]]
        first = even_stages(len(modules), num)
        add_chain(
            assembly,
            workload,
            Chain(modules=modules, first=first, blocks=chain_blocks(num), names=names, source=source),
        )
        return assembly

    return Placed(graph=m_shape(num), assemble=assemble)


def m_output(workload: Workload, num: int) -> Placed:
    """GPT with its vocabulary on all devices at both ends, tied; the output layer goes forward and backward in one block."""
    graph = m_shape(num)
    last = f"f{num - 1}"
    output = Block(name="output", devices=tuple(range(num)), seconds=1.0, after=(last,))
    blocks = [replace(block, after=("output",)) if block.name == f"b{num - 1}" else block for block in graph.blocks]
    graph = replace(graph, blocks=(*blocks, output))

    def assemble(model: nn.Module) -> Assembly:
        assembly, names = Assembly(), parameter_names(model)
        table = Vocabulary(name="0.token.weight", weight=model[0].token.weight)
        source = table.add_embedding(assembly, "embed", StageBlocks(forward="first", backward="last"))
        modules = [Positions(model[0]), *model[1:-1]]
        first = even_stages(len(modules), num)
        add_chain(
            assembly,
            workload,
            Chain(modules=modules, first=first, blocks=chain_blocks(num), names=names, source=source, loss_weight=0),
        )
        both = StageBlocks(forward="output", backward="output")
        table.add_loss(assembly, "output", both, Source(part=f"s{num - 1}"))
        return assembly

    return Placed(graph=graph, assemble=assemble)


AUXILIARY = 0.3


def with_auxiliary_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """GPT that must know the next token after half of its blocks, too."""
    tokens, targets = batch
    stream = model[1](model[0](tokens))
    early = functional.linear(stream, model[0].token.weight)
    late = model[2:](stream)
    losses = [functional.cross_entropy(logits.flatten(0, -2), targets.flatten()) for logits in (late, early)]
    return losses[0] + AUXILIARY * losses[1]


def nn_vocabulary(workload: Workload, num: int) -> Placed:
    """GPT with its embedding on all devices, and in the middle an output layer tied to it; the last head is its own."""

    def assemble(model: nn.Module) -> Assembly:
        assembly, names, half = Assembly(), parameter_names(model), num // 2
        table = Vocabulary(name="0.token.weight", weight=model[0].token.weight)
        source = table.add_embedding(assembly, "embed", StageBlocks(forward="first", backward="last"))
        early, late, blocks = [Positions(model[0]), model[1]], list(model[2:]), chain_blocks(num)
        first = even_stages(len(early), half)
        add_chain(
            assembly,
            workload,
            Chain(modules=early, first=first, blocks=blocks[:half], names=names, source=source, loss_weight=0),
        )
        source = Source(part=assembly.parts[-1].name)
        middle = StageBlocks(forward="middle", backward="back")
        table.add_loss(assembly, "early", middle, source, loss_weight=AUXILIARY)
        first = even_stages(len(late), num - half)
        add_chain(
            assembly,
            workload,
            Chain(modules=late, first=first, blocks=blocks[half:], names=names, prefix="t", source=source),
        )
        return assembly

    return Placed(graph=nn_shape(num), assemble=assemble)


def random_table(graph: BlockGraph, num_microbatches: int, seed: int) -> Timetable:
    """Any order that respects what blocks wait for; memory is not looked at."""
    draw = random.Random(seed)
    done: set[tuple[int, int]] = set()
    order: list[list[tuple[int, int]]] = [[] for _ in range(graph.num_devices)]
    steps = [(block, microbatch) for block in range(len(graph.blocks)) for microbatch in range(num_microbatches)]
    while len(done) < len(steps):
        free = [s for s in steps if s not in done and all((b, s[1]) in done for b, _ in graph.before[s[0]])]
        step = draw.choice(free)
        done.add(step)
        for device in graph.blocks[step[0]].devices:
            order[device].append(step)
    table = timetable(graph, num_microbatches, order)
    assert table is not None
    return table


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a step on all ranks."""

    held: list[dict[str, Tensor]]
    """Per rank: gradients by the names of the parts' parameters."""
    steps: list[PipelineStep]

    @property
    def loss(self) -> float:
        return sum(step.loss_share for step in self.steps)

    def gradients(self) -> dict[str, Tensor]:
        """Of the whole model; shards, named `NAME[k/n]`, one after another. What several hold must be equal to the bit."""
        found: dict[str, Tensor] = {}
        shards: dict[str, dict[int, Tensor]] = {}
        for one in self.held:
            for name, gradient in one.items():
                if name.endswith("]"):
                    whole, _, place = name.rpartition("[")
                    shards.setdefault(whole, {})[int(place.split("/")[0])] = gradient
                elif name in found:
                    assert bool((found[name] == gradient).all()), name
                else:
                    found[name] = gradient
        return found | {name: torch.cat([parts[k] for k in sorted(parts)]) for name, parts in shards.items()}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One step to run."""

    placed: Placed
    model: nn.Module
    table: Timetable
    batch: tuple[Tensor, ...]
    cut: BatchCut


def run(case: Case, *, num_steps: int = 1) -> Ran:
    """Each rank on a thread, with a copy of the model of its own; the gradients of the last step."""
    copies = [copy.deepcopy(case.model) for _ in range(case.table.graph.num_devices)]

    def rank_runs(group):
        assembly = case.placed.assemble(copies[group.rank()])
        program = assembly.program(case.table.graph)
        modules = assembly.modules(program, group.rank())
        executor = Executor(program, case.table, modules, group, timeout_s=20)
        for _ in range(num_steps):
            step = executor.step(case.batch, case.cut)
        held = {}
        for part in program.parts:
            if part.name in modules:
                names, parameters = program.parameters(part, group.rank()), modules[part.name].parameters()
                held |= {name: p.grad for name, p in zip(names, parameters, strict=True)}
        executor.close()
        return held, step

    outcomes = on_ranks(len(copies), rank_runs)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return Ran(held=[held for held, _ in outcomes], steps=[step for _, step in outcomes])
