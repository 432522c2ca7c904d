"""Block graphs from JSON, the input of `autotune schedule`, and their validation.

`{"devices": D, "memory": [limit per device], "blocks": [{"name", "devices", "time", "memory", "after", "split"}], "link_time":
[[seconds]]}`. Without "memory" there is no limit; "memory", "after" and "split" of a block and "link_time" are optional.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.workloads.blocks import Block, BlockGraph
from autotune.workloads.errors import SpecError, unknown_name
from autotune.workloads.files import json_of, read_text
from autotune.workloads.serial import from_data

_MOST_BYTES = 16 * 2**20
_MOST_DEVICES, _MOST_BLOCKS, _MOST_SLOTS = 4096, 20_000, 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    name: str
    devices: tuple[int, ...]
    time: float
    memory: float = 0.0
    after: tuple[str, ...] = ()
    split: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    devices: int
    blocks: tuple[_Block, ...]
    memory: tuple[float, ...] | None = None
    link_time: tuple[tuple[float, ...], ...] | None = None


def read_block_graph(path: Path) -> BlockGraph:
    """The graph in a file."""
    try:
        data = json_of(read_text(path, most_bytes=_MOST_BYTES))
    except OSError as error:
        raise SpecError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{str(path)!r} is no JSON ({error}): see docs/schedules.md for the format") from error
    return block_graph(data, str(path))


def block_graph(data: Any, where: str = "the graph") -> BlockGraph:
    """The graph that JSON data describes."""
    given = from_data(_File, data, where)
    if not 1 <= given.devices <= _MOST_DEVICES:
        raise SpecError(f"{where}.devices is {given.devices}: there must be at least one and at most {_MOST_DEVICES}")
    if not 1 <= len(given.blocks) <= _MOST_BLOCKS:
        raise SpecError(
            f"{where}.blocks has {len(given.blocks)}: there must be at least one block and at most {_MOST_BLOCKS}"
        )
    memory = given.memory if given.memory is not None else (math.inf,) * given.devices
    blocks = tuple(_block(block, given.devices) for block in given.blocks)
    graph = BlockGraph(num_devices=given.devices, memory=memory, blocks=blocks, link_s=given.link_time or ())
    check_graph(graph)
    return graph


def check_slots(graph: BlockGraph, num_microbatches: int) -> None:
    """Refuse more work than a schedule can be written for."""
    if len(graph.blocks) * num_microbatches > _MOST_SLOTS:
        raise SpecError(
            f"{num_microbatches} micro-batches of {len(graph.blocks)} blocks: a schedule has at most {_MOST_SLOTS} slots: ask for "
            f"{_MOST_SLOTS // len(graph.blocks)} micro-batches or fewer, whose order repeats"
        )


def graph_data(graph: BlockGraph) -> dict[str, Any]:
    """The inverse of `block_graph`, for writing a graph to a file."""
    blocks: list[dict[str, Any]] = []
    for block in graph.blocks:
        entry: dict[str, Any] = {"name": block.name, "devices": list(block.devices), "time": block.seconds}
        entry |= {"memory": block.memory, "after": list(block.after)}
        blocks.append(entry | ({"split": list(block.split)} if block.split else {}))
    data: dict[str, Any] = {"devices": graph.num_devices, "blocks": blocks}
    if all(map(math.isfinite, graph.memory)):
        data["memory"] = list(graph.memory)
    return data | ({"link_time": [list(row) for row in graph.link_s]} if graph.link_s else {})


def check_graph(graph: BlockGraph) -> None:
    """A SpecError that names the block and the device if the graph is invalid."""
    _check_devices(graph)
    names: set[str] = set()
    for block in graph.blocks:
        if block.name in names:
            raise SpecError(f"two blocks are called {block.name!r}: names must differ")
        names.add(block.name)
        _check_block(block, graph.num_devices)
    for block in graph.blocks:
        for name in block.after:
            if name not in names:
                raise unknown_name(f"block in 'after' of block {block.name!r}:", name, names)
    _check_cycles(graph)


def _block(given: _Block, num_devices: int) -> Block:
    if given.split is not None and len(given.split) != 2:
        raise SpecError(
            f"block {given.name!r} on {_devices(given.devices)} has split {list(given.split)}: "
            "give two times, of the input part and of the weight part"
        )
    for device in given.devices:
        if not 0 <= device < num_devices:
            raise SpecError(
                f"block {given.name!r} runs on device {device} but there are {num_devices}, numbered from 0: "
                "correct the block's devices or raise 'devices'"
            )
    split = None if given.split is None else (given.split[0], given.split[1])
    return Block(
        name=given.name,
        devices=given.devices,
        seconds=given.time,
        memory=given.memory,
        after=tuple(dict.fromkeys(given.after)),
        split=split,
    )


def _check_devices(graph: BlockGraph) -> None:
    if len(graph.memory) != graph.num_devices:
        raise SpecError(
            f"'memory' lists {len(graph.memory)} limits but there are {graph.num_devices} devices: give one for each"
        )
    for device, limit in enumerate(graph.memory):
        if not limit >= 0:
            raise SpecError(f"the memory of device {device} is {limit:g}: it must be at least 0")
    if not graph.link_s:
        return
    if len(graph.link_s) != graph.num_devices:
        raise SpecError(f"'link_time' has {len(graph.link_s)} rows but there are {graph.num_devices} devices")
    for source, row in enumerate(graph.link_s):
        if len(row) != graph.num_devices:
            raise SpecError(f"row {source} of 'link_time' has {len(row)} times: give one for each device")
        for target, seconds in enumerate(row):
            if not 0 <= seconds < math.inf:
                raise SpecError(f"link_time from device {source} to {target} is {seconds:g}: it must be at least 0")


def _check_block(block: Block, num_devices: int) -> None:
    where = f"block {block.name!r} on {_devices(block.devices)}"
    if not block.name:
        raise SpecError(f"a block on {_devices(block.devices)} has no name: give it one")
    if not block.devices:
        raise SpecError(f"block {block.name!r} has no device: name at least one")
    if len(set(block.devices)) < len(block.devices):
        raise SpecError(f"{where} names a device twice: name each once")
    for device in block.devices:
        if not 0 <= device < num_devices:
            raise SpecError(f"block {block.name!r} runs on device {device} but there are {num_devices}")
    for what, seconds in (("time", block.seconds), *(("split", part) for part in block.split or ())):
        if not 0 <= seconds < math.inf:
            raise SpecError(f"{where} has {what} {seconds:g}: it must be at least 0")
    if not math.isfinite(block.memory):
        raise SpecError(f"{where} changes memory by {block.memory:g}: it must be a finite number")


def _check_cycles(graph: BlockGraph) -> None:
    waiting = {block.name: set(block.after) for block in graph.blocks}
    while free := [name for name, after in waiting.items() if not after]:
        for name in free:
            del waiting[name]
        for after in waiting.values():
            after.difference_update(free)
    if not waiting:
        return
    cycle = [next(iter(waiting))]
    while (following := min(waiting[cycle[-1]])) not in cycle:
        cycle.append(following)
    around = [*cycle[cycle.index(following) :], following]
    device = graph.blocks[graph.index[following]].devices
    raise SpecError(
        f"block {following!r} on {_devices(device)} waits for itself ({' after '.join(around)}): remove one 'after'"
    )


def _devices(devices: tuple[int, ...]) -> str:
    return f"device{'s' * (len(devices) != 1)} {', '.join(map(str, devices)) or '(none)'}"
