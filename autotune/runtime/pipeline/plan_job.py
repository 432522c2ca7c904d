"""A plan with pipeline stages as a job that runs: classic orders, replicas of stages with uneven shares of the batch.

Stages may have different replicas, and shares that end at different samples. Every end of a share at any stage cuts the
micro-batch there: lanes, each of which is one rank's at every stage. A rank runs its lanes of a micro-batch one after another; its
gradients add up, and those of replicas are summed at the end of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from torch import nn

from autotune.runtime.pipeline.stages import (
    Assembly,
    StageBlocks,
    add_chain,
    first_modules,
    module_ops,
    parameter_names,
    stage_modules,
)
from autotune.runtime.pipeline.trainer import PipelineJob
from autotune.simulate.layout import FORWARD
from autotune.simulate.pipeline import classic_order
from workloads.blocks import Block, BlockGraph, Slot, Timetable
from workloads.errors import SpecError
from workloads.graph import OpGraph
from workloads.plan import PipelinePlan, Plan
from workloads.workload import Workload

Lanes = list[tuple[int, tuple[int, ...]]]
"""Samples of each lane in a micro-batch, and its rank at each stage."""


def plan_job(workload: Workload, plan: Plan, graph: OpGraph) -> PipelineJob:
    """The job of a plan; `graph`: the model's ops, which the plan's cut counts."""
    pipeline = plan.pipeline
    if pipeline is None:
        raise SpecError("the plan has no pipeline stages: train it as a data-parallel one")
    plan.validate(num_ranks=len(plan.batch.samples), global_batch=workload.global_batch)
    if pipeline.tensor_parallel != 1:
        raise SpecError(
            f"the plan's tensor_parallel is {pipeline.tensor_parallel}, which can be predicted but not run: use 1"
        )
    lanes = lanes_of(pipeline, plan.batch.samples)

    def assemble(model: nn.Module) -> Assembly:
        assembly, modules, names = Assembly(), stage_modules(workload, model), parameter_names(model)
        first, ops = first_modules(graph, model, modules, pipeline.first_ops), module_ops(graph, model, modules)
        for lane in range(len(lanes)):
            blocks = [
                StageBlocks(forward=f"f{stage}.{lane}", backward=f"b{stage}.{lane}") for stage in range(len(first))
            ]
            add_chain(
                assembly, workload, modules, first, blocks, names=names, lane=lane, prefix=f"lane{lane}.", ops=ops
            )
        return assembly

    return PipelineJob(
        workload=workload,
        assemble=assemble,
        table=_table(pipeline, lanes, len(plan.batch.samples)),
        samples=tuple((count,) * pipeline.micro_batches for count, _ in lanes),
    )


def lanes_of(pipeline: PipelinePlan, samples: Sequence[int]) -> Lanes:
    """The coarsest cut of a micro-batch that respects every stage's."""
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


def _table(pipeline: PipelinePlan, lanes: Lanes, num_ranks: int) -> Timetable:
    """Only its order counts: it has no times."""
    num = len(pipeline.first_ops)
    blocks: list[Block] = []
    for lane, (_, ranks) in enumerate(lanes):
        names = [f"f{stage}.{lane}" for stage in range(num)] + [f"b{stage}.{lane}" for stage in reversed(range(num))]
        for place, (name, rank) in enumerate(zip(names, (*ranks, *reversed(ranks)), strict=True)):
            after = (names[place - 1],) if place else ()
            memory = 1.0 if place < num else -1.0
            blocks.append(Block(name=name, devices=(rank,), seconds=0.0, memory=memory, after=after))
    order: list[tuple[Slot, ...]] = [()] * num_ranks
    for stage, replicas in enumerate(pipeline.stage_ranks):
        for rank in replicas:
            mine = [lane for lane, (_, ranks) in enumerate(lanes) if ranks[stage] == rank]
            order[rank] = tuple(
                Slot(block=f"{'f' if kind == FORWARD else 'b'}{stage}.{lane}", microbatch=microbatch, start_s=0.0)
                for kind, microbatch in classic_order(pipeline.schedule, stage, num, pipeline.micro_batches)
                for lane in mine
            )
    graph = BlockGraph(num_devices=num_ranks, memory=(float("inf"),) * num_ranks, blocks=tuple(blocks))
    return Timetable(graph=graph, num_microbatches=pipeline.micro_batches, order=tuple(order))
