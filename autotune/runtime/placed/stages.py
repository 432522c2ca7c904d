"""A workload's model as parts: cut between its modules into stages, described on all ranks, built on the ranks that run them.

A model can be cut if it is a `nn.Sequential`, or if its workload has `stages(model)`: modules that, called one after another,
compute the model. The first is called with the batch's first tensor. The last stage computes the workload's own loss, to
which it passes a model that ignores its arguments and continues from the stage's input. Every rank initializes the whole
model from the seed on the host, as without a pipeline, and frees the modules that it does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from autotune.runtime.placed.parts import SUM, Part, Program, Source
from autotune.workloads.blocks import BACKWARD, FORWARD, BlockGraph
from autotune.workloads.capture import LOSS, MODEL
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import Op, OpGraph
from autotune.workloads.pass_names import pass_name
from autotune.workloads.workload import Workload

Builder = Callable[[int, int], nn.Module]
"""Makes the module of a part from the shard's index and the number of shards."""


@dataclass(kw_only=True)
class Assembly:
    """Collects parts and makes a `Program` of them."""

    parts: list[Part] = field(default_factory=list)
    builders: dict[str, Builder] = field(default_factory=dict)
    ops: dict[str, tuple[Op, ...]] = field(default_factory=dict)
    """Of each part, for emulated devices."""

    def add(self, part: Part, builder: Builder, ops: Iterable[Op] = ()) -> None:
        self.parts.append(part)
        self.builders[part.name] = builder
        self.ops[part.name] = tuple(ops)

    def program(self, graph: BlockGraph) -> Program:
        return Program(parts=tuple(self.parts), graph=graph)

    def modules(self, program: Program, rank: int) -> dict[str, nn.Module]:
        """The modules of the parts that a rank runs."""
        found: dict[str, nn.Module] = {}
        for part in program.parts:
            devices = program.devices[part.name]
            if rank in devices:
                found[part.name] = self.builders[part.name](devices.index(rank), len(devices))
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class StageBlocks:
    """The blocks of one stage."""

    forward: str
    backward: str


class LossStage(nn.Module):
    """The last stage: its module, then the workload's loss."""

    def __init__(self, module: nn.Module, workload: Workload) -> None:
        super().__init__()
        self.module = module
        self._loss = workload.loss

    def forward(self, stream: Tensor, *batch: Tensor) -> Tensor:
        """`stream`: the output of the previous stage, which is not passed to the loss."""
        return self._loss(_Given(self.module, stream), batch)


class _Given(nn.Module):
    """A model that continues from the output of the previous stage."""

    def __init__(self, module: nn.Module, stream: Tensor) -> None:
        super().__init__()
        self.module, self._stream = module, stream

    def forward(self, *_inputs: Any) -> Any:
        return self.module(self._stream)


def stage_modules(workload: Workload, model: nn.Module) -> list[nn.Module]:
    """The modules between which a model can be cut."""
    stages = getattr(workload, "stages", None)
    if stages is not None:
        return list(stages(model))
    if isinstance(model, nn.Sequential):
        return list(model)
    raise SpecError(
        f"the model of {workload.name!r} is a {type(model).__name__}, which cannot be cut into stages: make it a nn.Sequential, or "
        "give the workload stages(model), the modules that are the model when called one after another"
    )


def even_stages(num_modules: int, num_stages: int) -> tuple[int, ...]:
    """The first module of each stage, with equally many modules in each, up to one."""
    if num_modules < num_stages:
        raise SpecError(f"{num_modules} modules cannot be cut into {num_stages} stages: use fewer stages")
    return tuple(num_modules * stage // num_stages for stage in range(num_stages))


def first_modules(
    graph: OpGraph, model: nn.Module, modules: Sequence[nn.Module], first_ops: Sequence[int]
) -> tuple[int, ...]:
    """The cut of a plan in modules instead of ops; SpecError if it lies inside a module."""
    owner = module_of_op(graph, model, modules)
    allowed = cut_ops(owner)
    for first in first_ops:
        if first not in allowed:
            where = (
                f" ({graph.ops[first].name!r}), which is inside a module"
                if first < len(owner)
                else ", which is not there"
            )
            raise SpecError(f"a stage begins at op {first}{where}: cut at one of {allowed[1:]}")
    return tuple(min(owner[first:]) if first else 0 for first in first_ops)


def cut_ops(owner: Sequence[int]) -> list[int]:
    """Ops at which a stage may begin: all ops before are of earlier modules than all ops from there on."""
    return [0, *(index for index in range(1, len(owner)) if max(owner[:index]) < min(owner[index:]))]


def module_ops(graph: OpGraph, model: nn.Module, modules: Sequence[nn.Module]) -> list[list[Op]]:
    """The ops of each module; the loss belongs to the last."""
    found: list[list[Op]] = [[] for _ in modules]
    for op, owner in zip(graph.ops, module_of_op(graph, model, modules), strict=True):
        found[owner].append(op)
    return found


def module_of_op(graph: OpGraph, model: nn.Module, modules: Sequence[nn.Module]) -> list[int]:
    """Per op: the index of its module. The loss and ops outside every module belong to the last."""
    names = {id(module): name for name, module in model.named_modules()}
    tops = [names.get(id(module), "") for module in modules]
    owners = []
    for op in graph.ops:
        inside = [index for index, top in enumerate(tops) if op.name == top or op.name.startswith(f"{top}.")]
        if not inside and op.name not in (LOSS, MODEL):
            raise SpecError(
                f"op {op.name!r} is in none of the model's stages: let stages(model) give all of its modules"
            )
        owners.append(inside[0] if inside else len(modules) - 1)
    return owners


def parameter_names(model: nn.Module) -> dict[int, str]:
    """Per parameter (by id): its first name in the whole model."""
    return {id(parameter): name for name, parameter in model.named_parameters()}


def names_of(module: nn.Module, names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(names[id(parameter)] for parameter in module.parameters())


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A chain of stages: its modules, and its place in the program."""

    modules: Sequence[nn.Module]
    first: Sequence[int]
    """The first module of each stage."""
    blocks: Sequence[StageBlocks]
    """Of each stage."""
    names: Mapping[int, str]
    """Names of parameters in the whole model (`parameter_names`)."""
    prefix: str = "s"
    """Names of parts: the prefix and the stage."""
    lane: int = 0
    source: Source | None = None
    """Input of the first stage; None: the batch."""
    loss_weight: float = 1.0
    """Weight of the last stage's loss; 0: the last stage has no loss."""
    num_data: int = 2
    """Tensors of a batch."""
    whole: str = SUM
    ops: Sequence[Sequence[Op]] = ()
    """Of each module, for emulated devices."""


def add_chain(assembly: Assembly, workload: Workload, chain: Chain) -> None:
    """Stages one after another. The first reads the chain's source, or the batch; the last returns the loss."""
    ends, source = [*chain.first, len(chain.modules)], chain.source
    for number, ((begin, end), block) in enumerate(zip(pairwise(ends), chain.blocks, strict=True)):
        module: nn.Module = nn.Sequential(*chain.modules[begin:end])
        data: tuple[int, ...] = () if number or source else (0,)
        is_last = number == len(chain.blocks) - 1
        builder: Builder = partial(_one, module)
        if is_last and chain.loss_weight:
            data += tuple(range(chain.num_data))
            builder = partial(_one, LossStage(module, workload))
        part = Part(
            name=f"{chain.prefix}{number}",
            forward=block.forward,
            backward=block.backward,
            inputs=() if source is None else (source,),
            data=data,
            loss_weight=chain.loss_weight if is_last else 0.0,
            whole=chain.whole,
            lane=chain.lane,
            parameters=names_of(module, chain.names),
        )
        assembly.add(part, builder, [op for one in chain.ops[begin:end] for op in one])
        source = Source(part=part.name)


def _one(module: nn.Module, _shard: int, _num_shards: int) -> nn.Module:
    return module


def chain_blocks(num_stages: int) -> list[StageBlocks]:
    """The blocks of stages without replicas."""
    return [
        StageBlocks(forward=pass_name(FORWARD, stage), backward=pass_name(BACKWARD, stage))
        for stage in range(num_stages)
    ]
