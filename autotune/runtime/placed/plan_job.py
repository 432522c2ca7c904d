"""A plan with pipeline stages as a job that runs: any order of passes, replicas of stages with uneven shares of the batch.

Stages may have different replicas, and shares that end at different samples. Every end of a share at any stage cuts the
micro-batch there: lanes, each of which is one rank's at every stage. A rank runs its lanes of a micro-batch one after another; its
gradients add up, and those of replicas are summed at the end of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from autotune.workloads.plan import PipelinePlan, Plan
from autotune.workloads.stage_order import is_split
from autotune.workloads.workload import Workload, check_no_stages, loop_of

Lanes = list[tuple[int, tuple[int, ...]]]
"""Samples of each lane in a micro-batch, and its rank at each stage."""


def plan_job(workload: Workload, plan: Plan, graph: OpGraph, *, paced: bool = True) -> PipelineJob:
    """The job of a plan; `graph`: the model's ops, which the plan's cut counts. `paced`: devices that state a speed emulate it."""
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
        for lane in range(len(lanes)):
            blocks = [
                StageBlocks(forward=_name(FORWARD, stage, lane), backward=_name(BACKWARD, stage, lane))
                for stage in range(len(first))
            ]
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
    """Of a batch: the last stage hands all of them to the loss."""
    sample, collate = workload.dataset()[0], getattr(workload, "collate", None)
    batch = sample if collate is None else collate([sample])
    return len(batch) if isinstance(batch, tuple | list) else 1


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
    passes = pipeline.passes()
    order: list[tuple[Slot, ...]] = [()] * num_ranks
    for stage, replicas in enumerate(pipeline.stage_ranks):
        for rank in replicas:
            mine = [lane for lane, (_, ranks) in enumerate(lanes) if ranks[stage] == rank]
            order[rank] = tuple(
                Slot(block=_name(kind, stage, lane), microbatch=microbatch, start_s=0.0)
                for kind, microbatch in passes[stage]
                for lane in mine
            )
    blocks = tuple(
        block
        for lane, (_, ranks) in enumerate(lanes)
        for block in _blocks(lane, ranks, [is_split(one) for one in passes])
    )
    graph = BlockGraph(num_devices=num_ranks, memory=(float("inf"),) * num_ranks, blocks=blocks)
    return Timetable(graph=graph, num_microbatches=pipeline.micro_batches, order=tuple(order))


def _blocks(lane: int, ranks: Sequence[int], split: Sequence[bool]) -> Iterator[Block]:
    """Of one lane: there and back; a split backward is two blocks, of which the next stage waits for the first."""
    after: tuple[str, ...] = ()
    for stage, rank in enumerate(ranks):
        name = _name(FORWARD, stage, lane)
        yield Block(name=name, devices=(rank,), seconds=0.0, memory=1.0, after=after)
        after = (name,)
    for stage, rank in reversed(list(enumerate(ranks))):
        name = _name(INPUT if split[stage] else BACKWARD, stage, lane)
        if not split[stage]:
            yield Block(name=name, devices=(rank,), seconds=0.0, memory=-1.0, after=after)
        else:
            whole, last = _name(BACKWARD, stage, lane), _name(WEIGHT, stage, lane)
            yield Block(name=name, devices=(rank,), seconds=0.0, after=after, whole=whole, part=INPUT)
            yield Block(name=last, devices=(rank,), seconds=0.0, memory=-1.0, after=(name,), whole=whole, part=WEIGHT)
        after = (name,)


def _name(kind: str, stage: int, lane: int) -> str:
    """As the simulator calls them and `parts.Program` looks for them: f1, b1, or b1.input and b1.weight; other lanes' f1.1 …."""
    where = f"{stage}.{lane}" if lane else f"{stage}"
    if kind == FORWARD:
        return f"f{where}"
    return f"b{where}" if kind == BACKWARD else f"b{where}.{kind}"
