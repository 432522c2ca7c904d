"""A placed model as blocks, and a schedule of them: what a pipeline runs, where, and in which order.

A block is a piece of work on one device or several at once (forward of a stage, backward of a stage, a layer that all devices
share). Every micro-batch runs every block once, after its dependencies. A block changes the memory of its devices when it
starts: forward allocates activations, backward frees them. So the order of a device's blocks determines its memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

FORWARD, BACKWARD = "forward", "backward"
INPUT, WEIGHT = "input", "weight"
"""The halves of a split backward: gradients of the inputs, on which the previous stage depends, and of the weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A piece of work of one micro-batch."""

    name: str
    devices: tuple[int, ...]
    """All of them are busy from start to end."""
    seconds: float
    memory: float = 0.0
    """The change on each of its devices, applied when the block starts. In the unit of the limits."""
    after: tuple[str, ...] = ()
    """Blocks of the same micro-batch that must have ended."""
    split: tuple[float, float] | None = None
    """Seconds of its input half and of its weight half, if it is a backward that can be split."""
    whole: str = ""
    """The block that this is a half of; empty for an unsplit block."""
    part: str = ""
    """`INPUT` or `WEIGHT`; empty for an unsplit block."""


@dataclass(frozen=True, kw_only=True)  # no slots: the derived tables are kept in the instance
class BlockGraph:
    """The blocks of every micro-batch, and the memory of the devices. Validated if it comes from `autotune.workloads.block_file`."""

    num_devices: int
    memory: tuple[float, ...]
    """The limit of each device, in the unit of the blocks; infinite: none."""
    blocks: tuple[Block, ...]
    link_s: tuple[tuple[float, ...], ...] = ()
    """Seconds from device to device, paid by a dependency between different devices. Empty: nothing."""

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The index of each block in `blocks`."""
        return {block.name: position for position, block in enumerate(self.blocks)}

    @cached_property
    def before(self) -> tuple[tuple[tuple[int, float], ...], ...]:
        """Per block: its dependencies, and the seconds between their end and its start."""
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
        """Per device: busy seconds per micro-batch."""
        return tuple(math.fsum(self.blocks[index].seconds for index in blocks) for blocks in self.on_device)

    @cached_property
    def topological(self) -> tuple[int, ...]:
        """All blocks in topological order; ties in the order of the file."""
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
        """Seconds of a dependency: 0 between blocks on the same devices, else those of the slowest pair of different devices."""
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
    """A schedule: what each device runs, in order. A block on several devices is in the order of each, with one start."""

    graph: BlockGraph
    """With the halves of a split backward as separate blocks (`split_backward`)."""
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


def half_name(block: str, half: str) -> str:
    """The name of the `INPUT` or `WEIGHT` half of a split block."""
    return f"{block}.{half}"


def split_backward(graph: BlockGraph) -> BlockGraph:
    """The graph with every block that has a split as two: `NAME.input`, on which others depend, and `NAME.weight` after it.

    Memory is freed when the weight half starts, since it reads the same activations; memory is allocated at once.
    """
    names = {block.name: half_name(block.name, INPUT) for block in graph.blocks if block.split}
    blocks: list[Block] = []
    for block in graph.blocks:
        after = tuple(names.get(name, name) for name in block.after)
        if block.split is None:
            blocks.append(_with_after(block, after))
            continue
        for part, seconds in zip((INPUT, WEIGHT), block.split, strict=True):
            taken = max(block.memory, 0.0) if part == INPUT else min(block.memory, 0.0)
            waits = after if part == INPUT else (names[block.name],)
            name = half_name(block.name, part)
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
