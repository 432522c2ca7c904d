"""What the blocks of a schedule compute: parts of a model, and which part reads what of which other.

A part has a forward and a backward, and each is a block of the schedule (`autotune.workloads.blocks`); both may be the same block. On
several devices a part has a shard on each, and what it gives is the sum of what its shards give, or their rows one after another.
Whoever reads it gets all the shards' pieces and puts them together, so that nothing but messages from rank to rank is needed. A
part may stand in the program several times, on different devices, for different samples: lanes. X has two lanes, replicas of a
chain have one each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from autotune.workloads.blocks import BACKWARD, FORWARD, INPUT, WEIGHT, BlockGraph
from autotune.workloads.errors import SpecError, unknown_name

SUM, ROWS = "sum", "rows"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What a part reads: an output of another part of its lane."""

    part: str
    output: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A piece of the model. Its module is called with its inputs, then with its tensors of the batch."""

    name: str
    forward: str
    """The block that runs it forward."""
    backward: str = ""
    """The block that runs it backward; empty: none does, and nothing is kept for it."""
    inputs: tuple[Source, ...] = ()
    data: tuple[int, ...] = ()
    """Which tensors of the batch it reads; every rank can have them."""
    num_outputs: int = 1
    loss_weight: float = 0.0
    """Above 0: its only output is a mean over the samples, which counts this much in the loss."""
    whole: str = SUM
    """On several devices: what it gives is the sum of its shards' outputs, or each shard has some of the rows (samples)."""
    lane: int = 0
    parameters: tuple[str, ...] = ()
    """What its parameters are called in the whole model, in the order of `module.parameters()`. What has one name is one tensor:
    the gradients of all ranks that hold it are summed."""
    has_own_rows: bool = False
    """On several devices: each shard holds some rows of its parameters, not all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """One pass of one part."""

    part: str
    kind: str
    """`FORWARD`, `BACKWARD`, or of a backward in two its `INPUT` or `WEIGHT`."""


@dataclass(frozen=True, kw_only=True)  # no slots: the derived tables are kept in the instance
class Program:
    """The parts of a model in an order in which each stands after those it reads, and the blocks that run them."""

    parts: tuple[Part, ...]
    graph: BlockGraph
    """As a Timetable has it: with split backwards as two blocks."""

    def __post_init__(self) -> None:
        """A SpecError if the two do not fit together."""
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
        """Of each part, sorted: the place of a device is the number of its shard."""
        blocks, index = self.graph.blocks, self.graph.index
        return {part.name: tuple(sorted(blocks[index[part.forward]].devices)) for part in self.parts}

    @property
    def num_lanes(self) -> int:
        return 1 + max(part.lane for part in self.parts)

    def parameters(self, part: Part, rank: int) -> tuple[str, ...]:
        """What a rank calls the parameters of a part; those of a shard with rows of its own are `NAME[shard/of]`."""
        devices = self.devices[part.name]
        if not part.has_own_rows:
            return part.parameters
        return tuple(f"{name}[{devices.index(rank)}/{len(devices)}]" for name in part.parameters)

    def readers(self, part: str) -> Iterator[tuple[Part, int]]:
        """Who reads a part, and as which of its inputs."""
        for reader in self.parts:
            for index, source in enumerate(reader.inputs):
                if source.part == part:
                    yield reader, index

    def actions(self) -> Mapping[str, tuple[Action, ...]]:
        """Per block: what it runs. Forwards in the order of the parts, backwards the other way."""
        found: dict[str, list[Action]] = {block.name: [] for block in self.graph.blocks}
        for part in self.parts:
            found[part.forward].append(Action(part=part.name, kind=FORWARD))
        for part in reversed(self.parts):
            if part.backward in found:
                found[part.backward].append(Action(part=part.name, kind=BACKWARD))
            elif part.backward:
                for kind in (INPUT, WEIGHT):
                    found[f"{part.backward}.{kind}"].append(Action(part=part.name, kind=kind))
        return {name: tuple(actions) for name, actions in found.items()}


def _blocks(part: Part, graph: BlockGraph) -> tuple[str, ...]:
    if not part.backward:
        return (part.forward,)
    if part.backward in graph.index:
        return part.forward, part.backward
    return part.forward, f"{part.backward}.{INPUT}", f"{part.backward}.{WEIGHT}"


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
