"""The job of a plan that places groups of ops: the traced model's segments as parts, one per lane.

A *lane* is a slice of every micro-batch that is on one rank in each group. So an activation passes from the rank of its lane
in one group to the rank of that lane in the next, as rows of a tensor, whatever the shares of the groups are. Gradients of
parameters that several ranks hold are summed at the end of the step.
"""

from __future__ import annotations

from collections import Counter
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
from autotune.schedule.list_schedule import Rule, list_order, priorities
from autotune.workloads.blocks import BACKWARD, FORWARD, Block, BlockGraph, Slot, Timetable
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import Op, OpGraph
from autotune.workloads.pass_names import pass_name
from autotune.workloads.plan import Plan
from autotune.workloads.plan.op_groups import PlacementPlan
from autotune.workloads.tensor_graph.segments import Segment, cut_segments, leaves_of, output_of, segment_module
from autotune.workloads.tensor_graph.traced import Traced, trace_model
from autotune.workloads.workload import Workload, check_no_stages, loop_of

DEEPEST = "deepest first"
"""Backward passes as early as possible, as in 1F1B."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lane:
    num_samples: int
    ranks: tuple[int, ...]
    """Per group."""


def placed_job(workload: Workload, plan: Plan, graph: OpGraph, traced: Traced, *, paced: bool = True) -> PipelineJob:
    """The job of a plan with groups of ops; `traced`: the model that every rank builds."""
    placement = plan.placement
    if placement is None:
        raise SpecError("the plan places no groups of ops: train it as a data-parallel one")
    plan.validate(num_ranks=len(plan.batch.samples), global_batch=workload.global_batch)
    check_no_stages(workload.name, loop_of(workload))
    segments = cut_segments(traced, groups_by_name(graph, traced, placement))
    lanes = [_Lane(num_samples=count, ranks=ranks) for count, ranks in placement.lanes()]
    names = _names(segments, lanes)

    def assemble(model: nn.Module) -> Assembly:
        assembly, parameters = Assembly(), parameter_names(model)
        ops = _ops_of_segments(graph, traced, segments) if paced else [()] * len(segments)
        for number, segment in enumerate(segments):
            module = _Placed(workload, traced, segment, model)
            for lane in range(len(lanes)):
                assembly.add(
                    _part(traced, segments, number, lane, names, names_of(module, parameters), num_tensors(workload)),
                    partial(_same, module),
                    ops[number],
                )
        return assembly

    return PipelineJob(
        workload=workload,
        assemble=assemble,
        table=_table(segments, lanes, names, placement.micro_batches, len(plan.batch.samples)),
        samples=tuple((lane.num_samples,) * placement.micro_batches for lane in lanes),
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
    groups_by_name(graph, trace_workload(workload, workload.model(), graph), plan.placement)


def groups_by_name(graph: OpGraph, traced: Traced, placement: PlacementPlan) -> dict[str, int]:
    """The group of every op by its name; SpecError where ops that must stay together do not."""
    group_of = placement.group_of_op()
    if missing := [op.name for index, op in enumerate(graph.ops) if index not in group_of]:
        raise SpecError(f"op {missing[0]!r} is in none of the plan's groups: every op is in one")
    if more := [index for index in group_of if index >= len(graph.ops)]:
        raise SpecError(f"the plan's groups name op {more[0]} but the model has {len(graph.ops)} ops")
    by_name = {op.name: group_of[index] for index, op in enumerate(graph.ops)}
    for together in traced.bound():
        if len({by_name[name] for name in together}) > 1:
            raise SpecError(f"ops {', '.join(sorted(together))} exchange what cannot be sent: put them into one group")
    return by_name


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


def _names(segments: Sequence[Segment], lanes: Sequence[_Lane]) -> list[list[_Name]]:
    """Per segment and lane. As in a pipeline, a rank is a replica of the segment and a lane one of its slices."""
    found = []
    for number, segment in enumerate(segments):
        replicas = list(dict.fromkeys(lane.ranks[segment.group] for lane in lanes))
        slices: Counter[int] = Counter()
        row = []
        for lane in lanes:
            replica = replicas.index(lane.ranks[segment.group])
            forward, backward = (
                pass_name(kind, number, replica=replica, slice_=slices[replica]) for kind in (FORWARD, BACKWARD)
            )
            slices[replica] += 1
            row.append(_Name(part=f"{forward}:", forward=forward, backward=backward))
        found.append(row)
    return found


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


def _table(
    segments: Sequence[Segment],
    lanes: Sequence[_Lane],
    names: Sequence[Sequence[_Name]],
    num_microbatches: int,
    num_ranks: int,
) -> Timetable:
    """The order of a list schedule in which every pass takes as long as its samples and operations are many."""
    graph = BlockGraph(
        num_devices=num_ranks, memory=(float("inf"),) * num_ranks, blocks=tuple(_blocks(segments, lanes, names))
    )
    order = list_order(graph, num_microbatches, graph.topological, Rule(priority=priorities(graph)[DEEPEST]))
    slots = tuple(
        tuple(Slot(block=graph.blocks[block].name, microbatch=number, start_s=0.0) for block, number in one)
        for one in order
    )
    return Timetable(graph=graph, num_microbatches=num_microbatches, order=slots)


def _blocks(segments: Sequence[Segment], lanes: Sequence[_Lane], names: Sequence[Sequence[_Name]]) -> Iterator[Block]:
    maker = {tensor: place for place, one in enumerate(segments) for tensor in one.gives}
    readers = {
        place: [n for n, one in enumerate(segments) if any(maker[t] == place for t in one.reads)]
        for place in range(len(segments))
    }
    for lane, where in enumerate(lanes):
        for number, segment in enumerate(segments):
            devices = (where.ranks[segment.group],)
            work = float(where.num_samples * len(segment.nodes))
            own, after = names[number][lane], tuple(names[maker[tensor]][lane].forward for tensor in segment.reads)
            yield Block(name=own.forward, devices=devices, seconds=work, memory=1.0, after=tuple(dict.fromkeys(after)))
            after = (own.forward, *(names[reader][lane].backward for reader in readers[number]))
            yield Block(name=own.backward, devices=devices, seconds=2 * work, memory=-1.0, after=after)


def _ops_of_segments(graph: OpGraph, traced: Traced, segments: Sequence[Segment]) -> list[tuple[Op, ...]]:
    """The ops that each segment has operations of; an op in several segments counts for the one with most of it."""
    counts = [Counter(traced.owners[name] for name in segment.nodes) for segment in segments]
    found: list[list[Op]] = [[] for _ in segments]
    for op in graph.ops:
        found[max(range(len(segments)), key=lambda number: counts[number][op.name])].append(op)
    return [tuple(ops) for ops in found]
