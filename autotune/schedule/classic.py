"""The classic schedules of a chain: GPipe, 1F1B, interleaved 1F1B, zero-bubble.

A chain is the usual pipeline: forward through the stages, backward in reverse, a stage's forward and backward on one
device. GPipe (Huang et al. 2019) runs all forwards, then all backwards, here in groups as large as memory allows. 1F1B
(PipeDream, Megatron) alternates after a warm-up of as many micro-batches as stages follow. Interleaved 1F1B (Megatron 2021)
needs several stages per device, assigned round-robin, and a multiple of the devices as number of micro-batches. Zero-bubble
(Qi et al. 2023) delays the weight halves of backward, more on later stages, so that all stages hold equally much memory:
H1 as much as the first stage of 1F1B, H2 about twice that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from autotune.schedule.memory import within
from autotune.workloads.blocks import INPUT, WEIGHT, BlockGraph, half_name

Step = tuple[int, int]
DeviceOrder = list[list[Step]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """The stages of a chain, in forward order."""

    forward: tuple[int, ...]
    """Per stage: its block."""
    backward: tuple[int, ...]
    """Per stage: its block; empty for inference."""
    device: tuple[int, ...]
    """Per stage."""


def find_chain(graph: BlockGraph) -> Chain | None:
    """The stages of a graph that is a chain, else None. The halves of split backwards are not considered."""
    followers = [0] * len(graph.blocks)
    for before in graph.before:
        for source, _ in before:
            followers[source] += 1
    single = all(len(block.devices) == 1 for block in graph.blocks)
    if not single or max(followers) > 1 or max(map(len, graph.before)) > 1 or graph.before.count(()) != 1:
        return None
    line = graph.topological
    devices = tuple(graph.blocks[block].devices[0] for block in line)
    if len(line) % 2 == 0 and devices == devices[::-1] and _looks_like_training(graph, line):
        half = len(line) // 2
        return Chain(forward=line[:half], backward=line[: half - 1 : -1], device=devices[:half])
    return Chain(forward=line, backward=(), device=devices)


def _looks_like_training(graph: BlockGraph, line: tuple[int, ...]) -> bool:
    """Whether backward frees what forward allocates; a chain without memory counts as training."""
    pairs = zip(line, reversed(line), strict=True)
    return all(graph.blocks[a].memory + graph.blocks[b].memory == 0 for a, b in pairs) and all(
        graph.blocks[block].memory >= 0 for block in line[: len(line) // 2]
    )


def classic_orders(graph: BlockGraph, chain: Chain, num_microbatches: int) -> Iterator[tuple[str, DeviceOrder]]:
    """The classic schedules that the chain allows."""
    if not chain.backward:
        yield "forward in order", _by_device(graph, chain, lambda stages: _inference(chain, stages, num_microbatches))
        return
    group = min(_group_size(graph, device) for device in range(graph.num_devices))
    if group >= 1:
        size = min(group, num_microbatches)
        yield "gpipe", _by_device(graph, chain, lambda stages: _gpipe(chain, stages, num_microbatches, size))
    if len(set(chain.device)) == len(chain.device):
        yield "1f1b", _by_device(graph, chain, lambda stages: _one_f_one_b(graph, chain, stages[0], num_microbatches))
    if _is_round_robin(graph, chain) and num_microbatches % graph.num_devices == 0:
        yield (
            "interleaved 1f1b",
            _by_device(graph, chain, lambda stages: _interleaved(graph, chain, stages, num_microbatches)),
        )


def _by_device(graph: BlockGraph, chain: Chain, make: Callable[[list[int]], Iterable[Step]]) -> DeviceOrder:
    order: DeviceOrder = []
    for device in range(graph.num_devices):
        stages = [stage for stage, owner in enumerate(chain.device) if owner == device]
        order.append(list(make(stages)) if stages else [])
    return order


def _inference(chain: Chain, stages: list[int], num: int) -> Iterator[Step]:
    for microbatch in range(num):
        yield from ((chain.forward[stage], microbatch) for stage in stages)


def _group_size(graph: BlockGraph, device: int) -> int:
    """The number of micro-batches whose activations fit at once."""
    taken = sum(max(graph.blocks[block].memory, 0.0) for block in graph.on_device[device])
    limit = graph.memory[device]
    if taken == 0 or limit == float("inf"):
        return 1 << 30
    fitting = int(limit / taken)
    return fitting + 1 if within((fitting + 1) * taken, limit) else fitting


def _gpipe(chain: Chain, stages: list[int], num: int, size: int) -> Iterator[Step]:
    for first in range(0, num, size):
        group = range(first, min(first + size, num))
        for stage in stages:
            yield from ((chain.forward[stage], microbatch) for microbatch in group)
        for stage in reversed(stages):
            yield from ((chain.backward[stage], microbatch) for microbatch in group)


def _one_f_one_b(graph: BlockGraph, chain: Chain, stage: int, num: int) -> Iterator[Step]:
    fitting = max(_group_size(graph, chain.device[stage]), 1)
    ahead = min(len(chain.forward) - stage, fitting, num)
    yield from ((chain.forward[stage], microbatch) for microbatch in range(ahead))
    for microbatch in range(num):
        yield chain.backward[stage], microbatch
        if ahead + microbatch < num:
            yield chain.forward[stage], ahead + microbatch


def zero_bubble_order(graph: BlockGraph, chain: Chain, parts: BlockGraph, num: int, *, depth: int) -> DeviceOrder:
    """H1 (depth 1) or H2 (depth 2) of the graph with split backwards, as far as memory allows."""
    order: DeviceOrder = [[] for _ in range(graph.num_devices)]
    for stage, device in enumerate(chain.device):
        name = graph.blocks[chain.backward[stage]].name
        forward = parts.index[graph.blocks[chain.forward[stage]].name]
        given, weight = (parts.index[half_name(name, half)] for half in (INPUT, WEIGHT))
        fitting = max(_group_size(graph, device), 1)
        ahead = min(depth * (len(chain.device) - stage) - (depth - 1), fitting, num)
        behind = min(depth * stage, fitting - ahead)
        mine = [(forward, microbatch) for microbatch in range(ahead)]
        for microbatch in range(num):
            mine.append((given, microbatch))
            mine += [(weight, microbatch - behind)] if microbatch >= behind else []
            mine += [(forward, ahead + microbatch)] if ahead + microbatch < num else []
        order[device] = [*mine, *((weight, microbatch) for microbatch in range(max(num - behind, 0), num))]
    return order


def _is_round_robin(graph: BlockGraph, chain: Chain) -> bool:
    """Stage s on device s modulo the number of devices, at least two for each."""
    num = graph.num_devices
    dealt = all(device == stage % num for stage, device in enumerate(chain.device))
    return dealt and num > 1 and len(chain.device) % num == 0 and len(chain.device) > num


def _interleaved(graph: BlockGraph, chain: Chain, stages: list[int], num: int) -> Iterator[Step]:
    """Megatron's order: micro-batches in groups of as many as devices, each group through all chunks."""
    devices, chunks = graph.num_devices, len(stages)
    total = num * chunks

    def at(place: int, *, backward: bool) -> Step:
        chunk = place // devices % chunks
        microbatch = place // (devices * chunks) * devices + place % devices
        if backward:
            return chain.backward[stages[chunks - 1 - chunk]], microbatch
        return chain.forward[stages[chunk]], microbatch

    warm_up = min((devices - stages[0] - 1) * 2 + (chunks - 1) * devices, total)
    yield from (at(place, backward=False) for place in range(warm_up))
    for place in range(warm_up, total):
        yield at(place, backward=False)
        yield at(place - warm_up, backward=True)
    yield from (at(place, backward=True) for place in range(total - warm_up, total))
