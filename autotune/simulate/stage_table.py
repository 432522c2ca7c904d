"""A simulated pipeline as a timetable: when each rank starts each pass of each micro-batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from autotune.simulate import layout
from autotune.simulate.spans import Simulated
from autotune.workloads.blocks import FORWARD, INPUT, WEIGHT, Block, BlockGraph, Slot, Timetable
from autotune.workloads.pass_names import pass_name, span_name
from autotune.workloads.plan import PipelinePlan
from autotune.workloads.stage_order import Pass


def stage_table(pipeline: PipelinePlan, samples: tuple[int, ...], simulated: Simulated) -> Timetable:
    """The passes as blocks (`autotune.workloads.pass_names`); each holds 1 per micro-batch from forward to backward."""
    run, num_ranks = simulated.run, len(simulated.run.peak_bytes)
    blocks: dict[str, Block] = {}
    order: list[tuple[Slot, ...]] = [()] * num_ranks
    for task, rank, name, one in _passes(pipeline, samples, simulated):
        seconds = float(run.end_s[task] - run.start_s[task])
        blocks.setdefault(name, _block(name, one, rank, seconds))
        order[rank] += (Slot(block=name, microbatch=one[1], start_s=float(run.start_s[task])),)
    graph = BlockGraph(num_devices=num_ranks, memory=(math.inf,) * num_ranks, blocks=tuple(blocks.values()))
    return Timetable(graph=graph, num_microbatches=pipeline.micro_batches, order=tuple(order))


def span_names(pipeline: PipelinePlan, samples: tuple[int, ...], simulated: Simulated) -> dict[int, str]:
    """Per task that is a pass: the name of its span, as in a traced step."""
    return {task: span_name(name, one[1]) for task, _, name, one in _passes(pipeline, samples, simulated)}


def _passes(
    pipeline: PipelinePlan, samples: tuple[int, ...], simulated: Simulated
) -> Iterator[tuple[int, int, str, Pass]]:
    """Task, rank, block and pass, rank by rank in order."""
    labels = simulated.labels
    is_pass = (labels.kind == layout.FORWARD) | (labels.kind == layout.BACKWARD)
    for stage, several in enumerate(pipeline.replicas(samples)):
        members = [(rank, replica.passes) for replica in several for rank in replica.ranks]
        for number, (rank, passes) in enumerate(members):
            tasks = np.flatnonzero(is_pass & (labels.rank == rank)).tolist()
            for one, task in zip(passes, tasks, strict=True):
                yield task, rank, pass_name(one[0], stage, replica=number), one


def _block(name: str, one: Pass, rank: int, seconds: float) -> Block:
    kind, _ = one
    memory = {FORWARD: 1.0, INPUT: 0.0}.get(kind, -1.0)
    return Block(
        name=name, devices=(rank,), seconds=seconds, memory=memory, part=kind if kind in (INPUT, WEIGHT) else ""
    )
