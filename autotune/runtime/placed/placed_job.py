"""The job of a plan that places groups of ops: the traced model's segments as parts, one per lane.

Which rank runs what in which order is in `autotune.workloads.tensor_graph.passes`. Gradients of parameters that several ranks
hold are summed at the end of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from autotune.runtime.data.batches import batches_of
from autotune.runtime.placed.parts import Part, Source
from autotune.runtime.placed.plan_job import num_tensors
from autotune.runtime.placed.stages import Assembly, names_of, parameter_names
from autotune.runtime.placed.trainer import PipelineJob
from autotune.workloads.blocks import BACKWARD, FORWARD, Block, BlockGraph, Slot, Timetable
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import Op, OpGraph
from autotune.workloads.plan import Plan
from autotune.workloads.tensor_graph.operations import Operations
from autotune.workloads.tensor_graph.passes import PlacedPasses, placed_passes
from autotune.workloads.tensor_graph.segment_modules import leaves_of, output_of, segment_module
from autotune.workloads.tensor_graph.segments import Segment, segment_of_ops
from autotune.workloads.tensor_graph.traced import Traced, trace_model
from autotune.workloads.workload import Workload, check_no_stages, loop_of


def placed_job(workload: Workload, plan: Plan, graph: OpGraph, traced: Traced, *, paced: bool = True) -> PipelineJob:
    """The job of a plan with groups of ops; `traced`: the model that every rank builds."""
    placement = plan.placement
    if placement is None:
        raise SpecError("the plan places no groups of ops: train it as a data-parallel one")
    plan.validate(num_ranks=len(plan.batch.samples), global_batch=workload.global_batch)
    check_no_stages(workload.name, loop_of(workload))
    operations = traced.operations
    passes = placed_passes(operations, operations.groups_by_name(graph, placement), placement)
    segments, names = passes.segments, _names(passes)

    def assemble(model: nn.Module) -> Assembly:
        assembly, parameters = Assembly(), parameter_names(model)
        ops = _ops_of_segments(graph, operations, segments) if paced else [()] * len(segments)
        for number, segment in enumerate(segments):
            module = _Placed(workload, traced, segment, model)
            for lane in range(len(passes.lanes)):
                assembly.add(
                    _part(traced, segments, number, lane, names, names_of(module, parameters), num_tensors(workload)),
                    partial(_same, module),
                    ops[number],
                )
        return assembly

    return PipelineJob(
        workload=workload,
        assemble=assemble,
        table=_table(passes, names, placement.micro_batches, len(plan.batch.samples)),
        samples=tuple((lane.num_samples,) * placement.micro_batches for lane in passes.lanes),
    )


def trace_workload(workload: Workload, model: nn.Module, graph: OpGraph) -> Traced:
    """A model as its workload's loss calls it."""
    batches = batches_of(workload, (workload.global_batch,), 0, seed=0)
    stages = getattr(workload, "stages", None)
    chain = () if stages is None else tuple(stages(model))
    return trace_model(graph, model, lambda count: workload.loss(model, batches.fetch(torch.arange(count))), chain)


def check_placed(workload: Workload, plan: Plan, graph: OpGraph) -> None:
    """Refuse groups that the model cannot be run in."""
    assert plan.placement is not None
    trace_workload(workload, workload.model(), graph).operations.groups_by_name(graph, plan.placement)


class _Placed(nn.Module):
    """A segment as the executor calls it: with the tensors that it reads, then with the batch where it needs it."""

    def __init__(self, workload: Workload, traced: Traced, segment: Segment, model: nn.Module) -> None:
        super().__init__()
        self.operations = segment_module(traced, segment, model)
        self._segment, self._num_read = segment, len(segment.reads)
        self._arguments = _Arguments(workload, traced, model)

    def forward(self, *given: Tensor) -> Any:
        read, batch = given[: self._num_read], given[self._num_read :]
        inputs = self._arguments.of(batch) if self._segment.inputs else {}
        made = self.operations(*read, *(inputs[name] for name in self._segment.inputs))
        return self._arguments.loss(made, batch) if self._segment.has_output else made


class _Arguments:
    """What the workload's loss calls the model with, and what it makes of the model's output."""

    def __init__(self, workload: Workload, traced: Traced, model: nn.Module) -> None:
        self._workload, self._traced = workload, traced
        self._bind = partial(leaves_of, traced, model=_signature_of(model))

    def of(self, batch: Sequence[Tensor]) -> Mapping[str, Any]:
        try:
            self._workload.loss(_Stop(), tuple(batch))
        except _CalledError as called:
            return self._bind(called.arguments, called.keywords)
        raise SpecError("the loss has not called the model")

    def loss(self, made: Any, batch: Sequence[Tensor]) -> Tensor:
        return self._workload.loss(_Known(output_of(self._traced, made)), tuple(batch))


class _CalledError(Exception):
    def __init__(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        super().__init__("the model is called")
        self.arguments, self.keywords = arguments, keywords


class _Stop(nn.Module):
    """A model that ends the loss with the arguments that it is called with."""

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        raise _CalledError(arguments, keywords)


class _Known(nn.Module):
    """A model whose output is there already."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_arguments: Any, **_keywords: Any) -> Any:
        return self._output


def _signature_of(model: nn.Module) -> nn.Module:
    """A module with the same arguments as the model's forward and none of its parameters."""
    shell = nn.Module()
    shell.forward = model.forward if not list(model.parameters()) else _Unbound(model)
    return shell


class _Unbound:
    """The signature of a model's forward, without the model."""

    def __init__(self, model: nn.Module) -> None:
        import inspect  # noqa: PLC0415

        self.__signature__ = inspect.signature(model.forward)

    def __call__(self, *_arguments: Any, **_keywords: Any) -> None: ...


def _same(module: nn.Module, _shard: int, _num_shards: int) -> nn.Module:
    return module


@dataclass(frozen=True, kw_only=True, slots=True)
class _Name:
    """A segment in a lane: its part and its blocks."""

    part: str
    forward: str
    backward: str


def _names(passes: PlacedPasses) -> list[list[_Name]]:
    """Per segment and lane."""
    found = passes.names()
    return [
        [
            _Name(part=f"{forward}:", forward=forward, backward=found[BACKWARD, number, lane])
            for lane in range(len(passes.lanes))
            for forward in [found[FORWARD, number, lane]]
        ]
        for number in range(len(passes.segments))
    ]


def _part(  # noqa: PLR0913, PLR0917 - a part of one lane
    traced: Traced,
    segments: Sequence[Segment],
    number: int,
    lane: int,
    names: Sequence[Sequence[_Name]],
    parameters: tuple[str, ...],
    num_data: int,
) -> Part:
    segment, name = segments[number], names[number][lane]
    maker = {tensor: place for place, one in enumerate(segments) for tensor in one.gives}
    return Part(
        name=name.part,
        forward=name.forward,
        backward=name.backward,
        inputs=tuple(
            Source(
                part=names[maker[tensor]][lane].part,
                output=segments[maker[tensor]].gives.index(tensor),
                has_gradient=tensor not in traced.exact,
            )
            for tensor in segment.reads
        ),
        data=tuple(range(num_data)) if segment.inputs or segment.has_output else (),
        num_outputs=1 if segment.has_output else len(segment.gives),
        loss_weight=1.0 if segment.has_output else 0.0,
        lane=lane,
        parameters=parameters,
    )


def _table(passes: PlacedPasses, names: Sequence[Sequence[_Name]], num_microbatches: int, num_ranks: int) -> Timetable:
    blocks = tuple(_blocks(passes, names))
    graph = BlockGraph(num_devices=num_ranks, memory=(float("inf"),) * num_ranks, blocks=blocks)
    order: list[list[Slot]] = [[] for _ in range(num_ranks)]
    for one in passes.order:
        name = names[one.segment][one.lane]
        block = name.forward if one.kind == FORWARD else name.backward
        order[passes.rank(one.segment, one.lane)].append(Slot(block=block, microbatch=one.microbatch, start_s=0.0))
    return Timetable(graph=graph, num_microbatches=num_microbatches, order=tuple(map(tuple, order)))


def _blocks(passes: PlacedPasses, names: Sequence[Sequence[_Name]]) -> Iterator[Block]:
    for lane, where in enumerate(passes.lanes):
        for number, segment in enumerate(passes.segments):
            devices = (where.ranks[segment.group],)
            work = float(where.num_samples * len(segment.nodes))
            own, after = names[number][lane], tuple(names[one.segment][lane].forward for one in passes.reads[number])
            yield Block(name=own.forward, devices=devices, seconds=work, memory=1.0, after=after)
            after = (own.forward, *(names[reader.segment][lane].backward for reader in passes.readers[number]))
            yield Block(name=own.backward, devices=devices, seconds=2 * work, memory=-1.0, after=after)


def _ops_of_segments(graph: OpGraph, operations: Operations, segments: Sequence[Segment]) -> list[tuple[Op, ...]]:
    found: list[list[Op]] = [[] for _ in segments]
    for op, number in zip(graph.ops, segment_of_ops(graph, operations, segments), strict=True):
        found[number].append(op)
    return [tuple(ops) for ops in found]
