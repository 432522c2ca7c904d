"""List schedules of any graph: of the blocks with the earliest possible start, the one of highest priority starts next.

The classic greedy of scheduling (Graham 1966), with memory kept safe by the banker's rule. Each priority rule is a member of
the portfolio: deepest first is the order of 1F1B, widest first that of GPipe.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from autotune.schedule.bounds import tails_s
from autotune.schedule.memory import Bank
from autotune.schedule.timing import Order
from autotune.workloads.blocks import WEIGHT, BlockGraph

Priority = Callable[[int, int], tuple[float, ...]]
"""Of a block and a micro-batch; the smallest starts first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A priority rule of list schedules."""

    priority: Priority
    patience: float = 0.0
    """A weight part counts as starting later by so many times its duration: blocks that are ready by then start first."""


def list_order(graph: BlockGraph, num_microbatches: int, fitting: tuple[int, ...], rule: Rule) -> Order:
    """The order that the rule gives."""
    return _Lister(graph, num_microbatches, fitting, rule).run()


def priorities(graph: BlockGraph) -> dict[str, Priority]:
    """Deepest, widest, oldest first, longest path to the end first."""
    depth = {block: place for place, block in enumerate(graph.topological)}
    tails = tails_s(graph)
    late = [float(block.part == WEIGHT) for block in graph.blocks]
    return {
        "deepest first": lambda block, microbatch: (late[block], -depth[block], microbatch),
        "widest first": lambda block, microbatch: (late[block], depth[block], microbatch),
        "oldest first": lambda block, microbatch: (late[block], microbatch, depth[block]),
        "longest way first": lambda block, microbatch: (late[block], -tails[block], microbatch),
    }


class _Lister:
    def __init__(self, graph: BlockGraph, num_microbatches: int, fitting: tuple[int, ...], rule: Rule) -> None:
        self._graph = graph
        self._num = num_microbatches
        self._rule = rule
        self._bank = Bank(graph, fitting)
        self._free_s = [0.0] * graph.num_devices
        self._next = [0] * len(graph.blocks)
        self._start_s: dict[tuple[int, int], float] = {}
        self._order: list[list[tuple[int, int]]] = [[] for _ in range(graph.num_devices)]
        self._followers: list[list[int]] = [[] for _ in graph.blocks]
        for block, before in enumerate(graph.before):
            for source, _ in before:
                self._followers[source].append(block)
        self._heap: list[tuple[float, tuple[float, ...], int]] = []
        self._parked: set[int] = set()
        self._listed: set[int] = set()

    def run(self) -> Order:
        for block in range(len(self._graph.blocks)):
            self._enqueue(block)
        for _ in range(self._num * len(self._graph.blocks)):
            self._start(self._choose())
        return self._order

    def _choose(self) -> int:
        while True:
            seen_s, _, block = heapq.heappop(self._heap)
            now_s = self._key_s(block)
            if now_s > seen_s:
                self._push(block, now_s)
            elif self._bank.is_safe(block, self._next[block]):
                return block
            else:
                self._parked.add(block)

    def _start(self, block: int) -> None:
        microbatch, given = self._next[block], self._graph.blocks[block]
        start_s = self._earliest_s(block)
        self._bank.start(block, microbatch)
        self._start_s[block, microbatch] = start_s
        self._next[block] += 1
        self._listed.discard(block)
        for device in given.devices:
            self._free_s[device] = start_s + given.seconds
            self._order[device].append((block, microbatch))
        for other in (block, *self._followers[block]):
            self._enqueue(other)
        for other in sorted(self._parked):
            if not set(given.devices).isdisjoint(self._graph.blocks[other].devices):
                self._parked.discard(other)
                self._push(other, self._key_s(other))

    def _enqueue(self, block: int) -> None:
        """Put the block's next micro-batch on the list, if what it waits for has been started."""
        microbatch = self._next[block]
        if block in self._listed or microbatch == self._num:
            return
        if all(self._next[source] > microbatch for source, _ in self._graph.before[block]):
            self._listed.add(block)
            self._push(block, self._key_s(block))

    def _push(self, block: int, key_s: float) -> None:
        heapq.heappush(self._heap, (key_s, self._rule.priority(block, self._next[block]), block))

    def _key_s(self, block: int) -> float:
        given = self._graph.blocks[block]
        wait_s = self._rule.patience * given.seconds if given.part == WEIGHT else 0.0
        return self._earliest_s(block) + wait_s

    def _earliest_s(self, block: int) -> float:
        microbatch, given = self._next[block], self._graph.blocks[block]
        start_s = max(self._free_s[device] for device in given.devices)
        for source, delay_s in self._graph.before[block]:
            start_s = max(start_s, self._start_s[source, microbatch] + self._graph.blocks[source].seconds + delay_s)
        return start_s
