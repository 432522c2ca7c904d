"""What the blocks of a program cost, by the same costs that emulated devices are paced by: what a schedule is searched with.

A block on several devices takes as long as the slowest of them. Memory is in bytes: what a part's ops keep for backward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.runtime.emulate.block_pacer import part_s
from autotune.runtime.placed.parts import Action, Program
from autotune.workloads.blocks import BACKWARD, FORWARD, INPUT, WEIGHT, Block, BlockGraph
from autotune.workloads.cluster import Device
from autotune.workloads.graph import Op


def priced(  # noqa: PLR0913 - what blocks are priced by
    program: Program,
    ops: Mapping[str, Sequence[Op]],
    devices: Sequence[Device],
    samples: float,
    *,
    memory: Sequence[float] = (),
    link_s: tuple[tuple[float, ...], ...] = (),
    split: bool = False,
) -> BlockGraph:
    """The program's graph with the seconds and bytes of micro-batches of so many samples. Backwards are in one piece.

    `memory`: what each device has left for activations; `split`: say what the parts of backwards cost, too.
    """

    def seconds(actions: Sequence[Action], kind: str = "") -> float:
        return max(
            math.fsum(
                part_s(
                    ops[one.part], devices[device], samples, kind or one.kind, num_shards=len(program.devices[one.part])
                )
                for one in actions
            )
            for device in program.devices[actions[0].part]
        )

    held = {
        part.name: sum(op.saved_bytes_per_sample for op in ops[part.name]) * samples / len(program.devices[part.name])
        for part in program.parts
        if part.backward and part.backward != part.forward
    }
    blocks: list[Block] = []
    for block in program.graph.blocks:
        actions = program.actions()[block.name]
        change = math.fsum(held.get(one.part, 0.0) * (1 if one.kind == FORWARD else -1) for one in actions)
        parts = None
        if split and all(one.kind == BACKWARD for one in actions):
            parts = (seconds(actions, INPUT), seconds(actions, WEIGHT))
        blocks.append(
            replace(block, seconds=seconds(actions), memory=change, split=parts if parts and all(parts) else None)
        )
    limits = tuple(memory) or (math.inf,) * program.graph.num_devices
    return replace(program.graph, blocks=tuple(blocks), memory=limits, link_s=link_s)
