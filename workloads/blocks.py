"""A placed model as blocks, and a schedule of them: what a pipeline runs, where, and in which order.

A block is a piece of work on one device or several at once (forward of a stage, backward of a stage, a layer that all devices
share). Every micro-batch runs every block once, after the blocks it waits for. A block changes the memory of its devices when it
starts: forward takes activations, backward gives them back. What a device holds is therefore fixed by the order of its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

FORWARD, BACKWARD = "forward", "backward"
INPUT, WEIGHT = "input", "weight"
"""The two parts of a split backward: gradients of the inputs, which the stage before waits for, and of the weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A piece of work of one micro-batch."""

    name: str
    devices: tuple[int, ...]
    """All of them are busy from start to end."""
    seconds: float
    memory: float = 0.0
    """The change on each of its devices, applied when the block starts. In any unit, the one of the limits."""
    after: tuple[str, ...] = ()
    """Blocks of the same micro-batch that must have ended."""
    split: tuple[float, float] | None = None
    """Seconds of its input part and of its weight part, if it is a backward that can be cut so."""
    whole: str = ""
    """The block that this is a part of; empty for a block that is no part."""
    part: str = ""
    """`INPUT` or `WEIGHT`; empty for a block that is no part."""


@dataclass(frozen=True, kw_only=True)  # no slots: the derived tables are kept in the instance
class BlockGraph:
    """What every micro-batch runs, and what the devices can hold. Valid if it comes from `autotune.workloads.block_file`."""

    num_devices: int
    memory: tuple[float, ...]
    """The limit of each device, in the unit of the blocks; infinite: none."""
    blocks: tuple[Block, ...]
    link_s: tuple[tuple[float, ...], ...] = ()
    """Seconds from device to device, paid by a dependency between different devices. Empty: nothing."""

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Where a block stands in `blocks`."""
        return {block.name: position for position, block in enumerate(self.blocks)}

    @cached_property
    def before(self) -> tuple[tuple[tuple[int, float], ...], ...]:
        """Per block: those it waits for, and the seconds between their end and its start."""
        return tuple(
            tuple((self.index[name], self.delay_s(self.blocks[self.index[name]], block)) for name in block.after)
            for block in self.blocks
        )

    @cached_property
    def on_device(self) -> tuple[tuple[int, ...], ...]:
        """Per device: its blocks."""
        return tuple(
            tuple(index for index, block in enumerate(self.blocks) if device in block.devices)
            for device in range(self.num_devices)
        )

    @cached_property
    def work_s(self) -> tuple[float, ...]:
        """Per device: how long one micro-batch keeps it busy."""
        return tuple(math.fsum(self.blocks[index].seconds for index in blocks) for blocks in self.on_device)

    @cached_property
    def topological(self) -> tuple[int, ...]:
        """All blocks, each after those it waits for; the order of the file where there is a choice."""
        placed: dict[int, None] = {}
        while len(placed) < len(self.blocks):
            free = [
                index
                for index in range(len(self.blocks))
                if index not in placed and all(source in placed for source, _ in self.before[index])
            ]
            placed.update(dict.fromkeys(free))
        return tuple(placed)

    def delay_s(self, source: Block, target: Block) -> float:
        """What a dependency pays: nothing between blocks on the same devices, else the slowest pair of different devices."""
        if not self.link_s or set(source.devices) == set(target.devices):
            return 0.0
        pairs = ((a, b) for a in source.devices for b in target.devices if a != b)
        return max((self.link_s[a][b] for a, b in pairs), default=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One block of one micro-batch in a schedule."""

    block: str
    microbatch: int
    start_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Timetable:
    """A schedule: what each device runs, in order. A block on several devices stands in the order of each, at the same start."""

    graph: BlockGraph
    """With backward parts as blocks of their own where the schedule splits them (`split_backward`)."""
    num_microbatches: int
    order: tuple[tuple[Slot, ...], ...]

    def slots(self) -> Iterator[Slot]:
        """Every block of every micro-batch once."""
        for device, slots in enumerate(self.order):
            for slot in slots:
                if min(self.graph.blocks[self.graph.index[slot.block]].devices) == device:
                    yield slot

    @property
    def makespan_s(self) -> float:
        blocks, index = self.graph.blocks, self.graph.index
        return max((slot.start_s + blocks[index[slot.block]].seconds for slot in self.slots()), default=0.0)


def split_backward(graph: BlockGraph) -> BlockGraph:
    """The same with every block that has a split as two: `NAME.input`, which others wait for, and `NAME.weight` after it.

    Memory is given back when the weight part starts, as it reads the same activations; memory that is taken is taken at once.
    """
    names = {block.name: f"{block.name}.{INPUT}" for block in graph.blocks if block.split}
    blocks: list[Block] = []
    for block in graph.blocks:
        after = tuple(names.get(name, name) for name in block.after)
        if block.split is None:
            blocks.append(_with_after(block, after))
            continue
        for part, seconds in zip((INPUT, WEIGHT), block.split, strict=True):
            taken = max(block.memory, 0.0) if part == INPUT else min(block.memory, 0.0)
            waits = after if part == INPUT else (names[block.name],)
            name = f"{block.name}.{part}"
            blocks.append(
                Block(
                    name=name,
                    devices=block.devices,
                    seconds=seconds,
                    memory=taken,
                    after=waits,
                    whole=block.name,
                    part=part,
                )
            )
    return BlockGraph(num_devices=graph.num_devices, memory=graph.memory, blocks=tuple(blocks), link_s=graph.link_s)


def _with_after(block: Block, after: tuple[str, ...]) -> Block:
    return Block(name=block.name, devices=block.devices, seconds=block.seconds, memory=block.memory, after=after)
