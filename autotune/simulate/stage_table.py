"""A simulated pipeline as a timetable: which pass of which micro-batch each rank begins when, for whoever draws it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from autotune.simulate import layout
from autotune.simulate.spans import Simulated
from autotune.workloads.blocks import BACKWARD, FORWARD, INPUT, WEIGHT, Block, BlockGraph, Slot, Timetable
from autotune.workloads.plan import PipelinePlan
from autotune.workloads.stage_order import Pass


def stage_table(pipeline: PipelinePlan, simulated: Simulated) -> Timetable:
    """Blocks are named as in a schedule, f0 …, b0 …; those of replicas with their rank. They hold one unit a micro-batch."""
    run, num_ranks = simulated.run, len(simulated.run.peak_bytes)
    blocks: dict[str, Block] = {}
    order: list[tuple[Slot, ...]] = [()] * num_ranks
    for task, rank, name, one in _passes(pipeline, simulated):
        seconds = float(run.end_s[task] - run.start_s[task])
        blocks.setdefault(name, _block(name, one, rank, seconds))
        order[rank] += (Slot(block=name, microbatch=one[1], start_s=float(run.start_s[task])),)
    graph = BlockGraph(num_devices=num_ranks, memory=(math.inf,) * num_ranks, blocks=tuple(blocks.values()))
    return Timetable(graph=graph, num_microbatches=pipeline.micro_batches, order=tuple(order))


def pass_names(pipeline: PipelinePlan, simulated: Simulated) -> dict[int, str]:
    """What a traced step of a real run calls each task that is a pass."""
    return {task: f"{name} micro-batch {one[1]}" for task, _, name, one in _passes(pipeline, simulated)}


def _passes(pipeline: PipelinePlan, simulated: Simulated) -> Iterator[tuple[int, int, str, Pass]]:
    """Task, rank, block and pass, rank by rank in order."""
    labels = simulated.labels
    is_pass = (labels.kind == layout.FORWARD) | (labels.kind == layout.BACKWARD)
    passes = pipeline.passes()
    for stage, ranks in enumerate(pipeline.stage_ranks):
        for rank in ranks:
            tasks = np.flatnonzero(is_pass & (labels.rank == rank)).tolist()
            for one, task in zip(passes[stage], tasks, strict=True):
                yield task, rank, _name(one, stage, rank, num_replicas=len(ranks)), one


def _name(one: Pass, stage: int, rank: int, *, num_replicas: int) -> str:
    kind, _ = one
    where = f"{stage}" if num_replicas == 1 else f"{stage} on rank {rank}"
    if kind == FORWARD:
        return f"f{where}"
    return f"b{where}" if kind == BACKWARD else f"b{where}.{kind}"


def _block(name: str, one: Pass, rank: int, seconds: float) -> Block:
    kind, _ = one
    memory = {FORWARD: 1.0, INPUT: 0.0}.get(kind, -1.0)
    return Block(
        name=name, devices=(rank,), seconds=seconds, memory=memory, part=kind if kind in (INPUT, WEIGHT) else ""
    )
