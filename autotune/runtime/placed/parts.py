"""What the blocks of a schedule compute: parts of a model, and the inputs of each.

The forward and the backward of a part are blocks of the schedule (`autotune.workloads.blocks`); they may be the same block. A part
on several devices has a shard on each. Its output is the sum of the shards' outputs, or their rows concatenated. A reader
receives the outputs of all shards and combines them, so point-to-point messages suffice.

A *lane* is one path of samples through the parts of a model: the same slice of every micro-batch passes one instance of each
part. A program may contain a part several times, in different lanes, on different devices. A chain without replicas has
one lane, replicas of a chain have one lane each, and the X placement has two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from autotune.workloads.blocks import BACKWARD, FORWARD, INPUT, WEIGHT, BlockGraph, half_name
from autotune.workloads.errors import SpecError, unknown_name

SUM, ROWS = "sum", "rows"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """An input: an output of another part of the same lane."""

    part: str
    output: int = 0
    has_gradient: bool = True
    """False for whole numbers and masks: nothing is sent back for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A piece of the model. Its module is called with its inputs, then with its tensors of the batch."""

    name: str
    forward: str
    """The block that runs it forward."""
    backward: str = ""
    """The block that runs it backward; empty: it has no backward and saves no activations."""
    inputs: tuple[Source, ...] = ()
    data: tuple[int, ...] = ()
    """Indices of the batch's tensors that it reads; every rank has them."""
    num_outputs: int = 1
    loss_weight: float = 0.0
    """Above 0: its only output is a mean over samples with this weight in the loss."""
    whole: str = SUM
    """On several devices: `SUM` of the shards' outputs, or `ROWS` (samples), some per shard."""
    lane: int = 0
    parameters: tuple[str, ...] = ()
    """Names of its parameters in the whole model, in the order of `module.parameters()`. Parameters of one name are one tensor:
    its gradients are summed over all ranks that hold it."""
    has_own_rows: bool = False
    """On several devices: each shard holds some rows of its parameters, not all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """One pass of one part."""

    part: str
    kind: str
    """`FORWARD`, `BACKWARD`, or of a split backward `INPUT` or `WEIGHT`."""


@dataclass(frozen=True, kw_only=True)  # no slots: the derived tables are kept in the instance
class Program:
    """The parts of a model, each after those it reads, and the blocks that run them."""

    parts: tuple[Part, ...]
    graph: BlockGraph
    """As a Timetable has it: with split backwards as two blocks."""

    def __post_init__(self) -> None:
        """A SpecError if parts and blocks do not match."""
        seen: dict[str, Part] = {}
        for part in self.parts:
            if part.name in seen:
                raise SpecError(f"two parts are called {part.name!r}: names must differ")
            _check_inputs(part, seen)
            _check_blocks(part, self.graph)
            seen[part.name] = part
        run = {name for part in self.parts for name in _blocks(part, self.graph)}
        for block in self.graph.blocks:
            if block.name not in run:
                raise SpecError(f"no part runs in block {block.name!r}: name it as the forward or backward of one")

    @cached_property
    def by_name(self) -> Mapping[str, Part]:
        return {part.name: part for part in self.parts}

    @cached_property
    def devices(self) -> Mapping[str, tuple[int, ...]]:
        """Of each part, sorted: the index of a device is its shard."""
        blocks, index = self.graph.blocks, self.graph.index
        return {part.name: tuple(sorted(blocks[index[part.forward]].devices)) for part in self.parts}

    @property
    def num_lanes(self) -> int:
        return 1 + max(part.lane for part in self.parts)

    def parameters(self, part: Part, rank: int) -> tuple[str, ...]:
        """Names of the parameters of a part on a rank; of a shard with its own rows `NAME[shard/of]`."""
        devices = self.devices[part.name]
        if not part.has_own_rows:
            return part.parameters
        return tuple(f"{name}[{devices.index(rank)}/{len(devices)}]" for name in part.parameters)

    def readers(self, part: str) -> Iterator[tuple[Part, int]]:
        """The readers of a part, and the index of the input."""
        for reader in self.parts:
            for index, source in enumerate(reader.inputs):
                if source.part == part:
                    yield reader, index

    def actions(self) -> Mapping[str, tuple[Action, ...]]:
        """Per block: the passes it runs. Forwards in the order of the parts, backwards in reverse."""
        found: dict[str, list[Action]] = {block.name: [] for block in self.graph.blocks}
        for part in self.parts:
            found[part.forward].append(Action(part=part.name, kind=FORWARD))
        for part in reversed(self.parts):
            if part.backward in found:
                found[part.backward].append(Action(part=part.name, kind=BACKWARD))
            elif part.backward:
                for kind in (INPUT, WEIGHT):
                    found[half_name(part.backward, kind)].append(Action(part=part.name, kind=kind))
        return {name: tuple(actions) for name, actions in found.items()}


def _blocks(part: Part, graph: BlockGraph) -> tuple[str, ...]:
    if not part.backward:
        return (part.forward,)
    if part.backward in graph.index:
        return part.forward, part.backward
    return part.forward, half_name(part.backward, INPUT), half_name(part.backward, WEIGHT)


def _check_inputs(part: Part, before: Mapping[str, Part]) -> None:
    for source in part.inputs:
        if source.part not in before:
            raise unknown_name(f"part that {part.name!r} reads (list it before):", source.part, before)
        read = before[source.part]
        if read.lane != part.lane:
            raise SpecError(
                f"part {part.name!r} of lane {part.lane} reads {read.name!r} of lane {read.lane}: read within a lane"
            )
        if bool(read.backward) < bool(part.backward):
            raise SpecError(
                f"part {part.name!r} has a backward but {read.name!r}, which it reads, has none: give it one"
            )
        if not 0 <= source.output < read.num_outputs:
            raise SpecError(
                f"part {part.name!r} reads output {source.output} of {read.name!r}, which has {read.num_outputs}"
            )
    if part.whole not in (SUM, ROWS):
        raise SpecError(f"part {part.name!r} is put together by {part.whole!r}: use {SUM!r} or {ROWS!r}")
    if part.loss_weight and (part.num_outputs != 1 or part.whole != SUM):
        raise SpecError(f"part {part.name!r} is a loss: it has one output, the same on all its devices")


def _check_blocks(part: Part, graph: BlockGraph) -> None:
    blocks = _blocks(part, graph)
    for name in blocks:
        if name not in graph.index:
            raise unknown_name(f"block of part {part.name!r}:", name, graph.index)
    places = {frozenset(graph.blocks[graph.index[name]].devices) for name in blocks}
    if len(places) > 1:
        raise SpecError(
            f"part {part.name!r} goes forward and backward on different devices ({', '.join(blocks)}): use the same"
        )
