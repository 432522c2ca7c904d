"""Workloads on the placements of `autotune.schedule.shapes`: what each block of a shape computes here, and running it on threads."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn

from autotune.runtime.pipeline.batch_cut import BatchCut
from autotune.runtime.pipeline.executor import Executor, PipelineStep
from autotune.runtime.pipeline.stages import (
    Assembly,
    StageBlocks,
    add_chain,
    chain_blocks,
    even_stages,
    parameter_names,
    stage_modules,
)
from autotune.schedule.shapes import v_shape, x_shape
from autotune.schedule.timing import timetable
from tests.gloo_ranks import on_ranks
from workloads.blocks import BlockGraph, Timetable
from workloads.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A model on a shape: `assemble(model)` makes its parts."""

    graph: BlockGraph
    assemble: Callable[[nn.Module], Assembly]
    num_lanes: int = 1
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Sharded parameters by the name of the shard's: not used by plain chains."""


def v_placed(workload: Workload, num: int) -> Placed:
    def assemble(model: nn.Module) -> Assembly:
        assembly, modules = Assembly(), stage_modules(workload, model)
        first = even_stages(len(modules), num)
        add_chain(assembly, workload, modules, first, chain_blocks(num), names=parameter_names(model))
        return assembly

    return Placed(graph=v_shape(num), assemble=assemble)


def x_placed(workload: Workload, num: int) -> Placed:
    """Every second piece of the batch goes the other way."""

    def assemble(model: nn.Module) -> Assembly:
        assembly, modules, names = Assembly(), stage_modules(workload, model), parameter_names(model)
        first = even_stages(len(modules), num)
        back = [StageBlocks(forward=f"rf{num - 1 - stage}", backward=f"rb{num - 1 - stage}") for stage in range(num)]
        add_chain(assembly, workload, modules, first, chain_blocks(num), names=names)
        add_chain(assembly, workload, modules, first, back, names=names, lane=1, prefix="r")
        return assembly

    return Placed(graph=x_shape(num), assemble=assemble, num_lanes=2)


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
        import torch

        return found | {name: torch.cat([parts[k] for k in sorted(parts)]) for name, parts in shards.items()}


def run(placed: Placed, model: nn.Module, table: Timetable, batch, cut: BatchCut, *, num_steps: int = 1) -> Ran:
    """Each rank on a thread, with a copy of the model of its own; the gradients of the last step."""
    copies = [copy.deepcopy(model) for _ in range(placed.graph.num_devices)]

    def rank_runs(group):
        assembly = placed.assemble(copies[group.rank()])
        program = assembly.program(table.graph)
        modules = assembly.modules(program, group.rank())
        executor = Executor(program, table, modules, group, timeout_s=20)
        for _ in range(num_steps):
            step = executor.step(batch, cut)
        held = {}
        for part in program.parts:
            if part.name in modules:
                parameters = modules[part.name].parameters()
                held |= {name: p.grad for name, p in zip(part.parameters, parameters, strict=True)}
        executor.close()
        return held, step

    outcomes = on_ranks(placed.graph.num_devices, rank_runs)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return Ran(held=[held for held, _ in outcomes], steps=[step for _, step in outcomes])
