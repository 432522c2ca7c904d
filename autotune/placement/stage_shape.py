"""A plan with stages as the search for one sees it: where stages begin, the ranks of each replica, and their shares.

Ops are counted in places at which a stage may begin (`StageCuts`). A share is a replica's samples of every micro-batch where
replicas split it, else the number of whole micro-batches that it takes: so every shape is a plan that validates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.workloads.plan import ROUND_ROBIN, SPLIT, BatchPlan, CommPlan, PipelinePlan, Plan

Group = tuple[int, ...]
"""The ranks of a replica."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A part of the model on its replicas."""

    first: int
    """The place at which it begins."""
    groups: tuple[Group, ...]
    shares: tuple[int, ...]
    """Of each replica."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """All that the search chooses."""

    stages: tuple[Stage, ...]
    micro_batches: int
    sharing: str = SPLIT
    schedule: str = "1f1b"

    @property
    def ranks(self) -> tuple[int, ...]:
        """All that have a stage."""
        return tuple(rank for stage in self.stages for group in stage.groups for rank in group)

    @property
    def firsts(self) -> tuple[int, ...]:
        return tuple(stage.first for stage in self.stages)


def to_plan(shape: Shape, first_ops: Sequence[int], num_ranks: int, global_batch: int) -> Plan:
    """`first_ops`: of each place."""
    unit = shape.micro_batches if shape.sharing == SPLIT else global_batch // shape.micro_batches
    samples = [0] * num_ranks
    for stage in shape.stages:
        for group, share in zip(stage.groups, stage.shares, strict=True):
            for rank in group:
                samples[rank] = share * unit
    sizes = tuple(tuple(len(group) for group in stage.groups) for stage in shape.stages)
    degrees = {size for stage in sizes for size in stage}
    pipeline = PipelinePlan(
        first_ops=tuple(first_ops[stage.first] for stage in shape.stages),
        stage_ranks=tuple(tuple(rank for group in stage.groups for rank in group) for stage in shape.stages),
        micro_batches=shape.micro_batches,
        schedule=shape.schedule,
        tensor_parallel=min(degrees) if len(degrees) == 1 else 1,
        group_sizes=sizes if len(degrees) > 1 else (),
        sharing=shape.sharing if any(len(stage.groups) > 1 for stage in shape.stages) else SPLIT,
    )
    return Plan(batch=BatchPlan(samples=tuple(samples)), comm=CommPlan(transport="gloo"), pipeline=pipeline)


def to_shape(plan: Plan, first_ops: Sequence[int]) -> Shape:
    """The inverse; stages begin at places."""
    pipeline = plan.pipeline
    assert pipeline is not None
    unit = pipeline.micro_batches
    if pipeline.sharing == ROUND_ROBIN:
        unit = plan.global_batch // pipeline.micro_batches
    place_of = {op: place for place, op in enumerate(first_ops)}
    return Shape(
        stages=tuple(
            Stage(
                first=place_of[op],
                groups=groups,
                shares=tuple(plan.batch.samples[group[0]] // unit for group in groups),
            )
            for op, groups in zip(pipeline.first_ops, pipeline.groups(), strict=True)
        ),
        micro_batches=pipeline.micro_batches,
        sharing=pipeline.sharing,
        schedule=pipeline.schedule,
    )
