"""The job of a plan with pipeline stages: any order of passes, replicas of stages with uneven shares of the batch.

Stages may differ in replicas and in shares. Every boundary between shares, at any stage, cuts the micro-batch into lanes: at
every stage a lane is on one rank. A rank runs its lanes of a micro-batch one after another (the slices of a pass,
`autotune.workloads.pass_names`). Its gradients accumulate; those of replicas are summed at the end of the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from torch import nn

from autotune.runtime.placed.stages import (
    Assembly,
    Chain,
    StageBlocks,
    add_chain,
    first_modules,
    module_ops,
    parameter_names,
    stage_modules,
)
from autotune.runtime.placed.trainer import PipelineJob
from autotune.workloads.blocks import BACKWARD, FORWARD, INPUT, WEIGHT, Block, BlockGraph, Slot, Timetable
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import OpGraph
from autotune.workloads.pass_names import pass_name
from autotune.workloads.plan import PipelinePlan, Plan
from autotune.workloads.stage_order import is_split
from autotune.workloads.workload import Workload, check_no_stages, loop_of

Lanes = list[tuple[int, tuple[int, ...]]]
"""Samples of each lane in a micro-batch, and its rank at each stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LanePlace:
    """Where a lane runs at one stage: its replica, and its index among the lanes of that replica."""

    stage: int
    replica: int
    slice: int

    def name(self, kind: str) -> str:
        return pass_name(kind, self.stage, replica=self.replica, slice_=self.slice)


def plan_job(workload: Workload, plan: Plan, graph: OpGraph, *, paced: bool = True) -> PipelineJob:
    """The job of a plan; `graph`: the ops that the plan's cut indexes. `paced`: emulate devices that state a speed."""
    pipeline = plan.pipeline
    if pipeline is None:
        raise SpecError("the plan has no pipeline stages: train it as a data-parallel one")
    plan.validate(num_ranks=len(plan.batch.samples), global_batch=workload.global_batch)
    plan.check_runnable()
    check_no_stages(workload.name, loop_of(workload))
    if getattr(workload, "sync_norm", False):
        raise SpecError(
            f"workload {workload.name!r} takes BatchNorm statistics over all ranks, but stages of a pipeline take them over "
            "micro-batches: use a plan without stages, or local norms"
        )
    lanes = lanes_of(pipeline, plan.batch.samples)

    def assemble(model: nn.Module) -> Assembly:
        assembly, modules, names = Assembly(), stage_modules(workload, model), parameter_names(model)
        first = first_modules(graph, model, modules, pipeline.first_ops)
        ops = module_ops(graph, model, modules) if paced else ()
        for lane, places in enumerate(lane_places(pipeline, lanes)):
            blocks = [StageBlocks(forward=place.name(FORWARD), backward=place.name(BACKWARD)) for place in places]
            add_chain(
                assembly,
                workload,
                Chain(
                    modules=modules,
                    first=first,
                    blocks=blocks,
                    names=names,
                    lane=lane,
                    prefix=f"lane{lane}.",
                    num_data=num_tensors(workload),
                    ops=ops,
                ),
            )
        return assembly

    return PipelineJob(
        workload=workload,
        assemble=assemble,
        table=_table(pipeline, lanes, len(plan.batch.samples)),
        samples=tuple((count,) * pipeline.micro_batches for count, _ in lanes),
    )


def num_tensors(workload: Workload) -> int:
    """Tensors of a batch: the last stage passes all of them to the loss."""
    sample, collate = workload.dataset()[0], getattr(workload, "collate", None)
    batch = sample if collate is None else collate([sample])
    return len(batch) if isinstance(batch, tuple | list) else 1


def lanes_of(pipeline: PipelinePlan, samples: Sequence[int]) -> Lanes:
    """The coarsest common refinement of the shares of all stages."""
    ends = [
        [end // pipeline.micro_batches for end in accumulate(samples[rank] for rank in ranks)]
        for ranks in pipeline.stage_ranks
    ]
    cuts = sorted({0}.union(*ends))
    return [
        (
            end - begin,
            tuple(
                next(rank for rank, last in zip(ranks, stage, strict=True) if last >= end)
                for ranks, stage in zip(pipeline.stage_ranks, ends, strict=True)
            ),
        )
        for begin, end in pairwise(cuts)
    ]


def lane_places(pipeline: PipelinePlan, lanes: Lanes) -> list[list[LanePlace]]:
    """Per lane and stage."""
    slices: Counter[int] = Counter()
    found: list[list[LanePlace]] = []
    for _, ranks in lanes:
        found.append(
            [
                LanePlace(stage=stage, replica=pipeline.stage_ranks[stage].index(rank), slice=slices[rank])
                for stage, rank in enumerate(ranks)
            ]
        )
        slices.update(ranks)
    return found


def _table(pipeline: PipelinePlan, lanes: Lanes, num_ranks: int) -> Timetable:
    """An order only: all times are 0."""
    passes, places = pipeline.passes(), lane_places(pipeline, lanes)
    order: list[tuple[Slot, ...]] = [()] * num_ranks
    for stage, replicas in enumerate(pipeline.stage_ranks):
        for rank in replicas:
            mine = [lane for lane, (_, ranks) in enumerate(lanes) if ranks[stage] == rank]
            order[rank] = tuple(
                Slot(block=places[lane][stage].name(kind), microbatch=microbatch, start_s=0.0)
                for kind, microbatch in passes[stage]
                for lane in mine
            )
    blocks = tuple(
        block
        for lane, (_, ranks) in enumerate(lanes)
        for block in _blocks(ranks, places[lane], [is_split(one) for one in passes])
    )
    graph = BlockGraph(num_devices=num_ranks, memory=(float("inf"),) * num_ranks, blocks=blocks)
    return Timetable(graph=graph, num_microbatches=pipeline.micro_batches, order=tuple(order))


def _blocks(ranks: Sequence[int], places: Sequence[LanePlace], split: Sequence[bool]) -> Iterator[Block]:
    """Of one lane: forward, then backward. A split backward is two blocks; the stage before depends on the first."""
    after: tuple[str, ...] = ()
    for stage, rank in enumerate(ranks):
        name = places[stage].name(FORWARD)
        yield Block(name=name, devices=(rank,), seconds=0.0, memory=1.0, after=after)
        after = (name,)
    for stage, rank in reversed(list(enumerate(ranks))):
        name = places[stage].name(INPUT if split[stage] else BACKWARD)
        if not split[stage]:
            yield Block(name=name, devices=(rank,), seconds=0.0, memory=-1.0, after=after)
        else:
            whole, last = places[stage].name(BACKWARD), places[stage].name(WEIGHT)
            yield Block(name=name, devices=(rank,), seconds=0.0, after=after, whole=whole, part=INPUT)
            yield Block(name=last, devices=(rank,), seconds=0.0, memory=-1.0, after=(name,), whole=whole, part=WEIGHT)
        after = (name,)
