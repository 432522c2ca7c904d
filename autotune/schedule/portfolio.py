"""Schedules without a search: the answer is never worse than the best of them.

For chains the classic ones; zero-bubble orders (Qi et al. 2023: the weight part of backward fills the gaps) where backward can be
split, on V-shaped placements too (two stages per device, in opposite order); for any graph list schedules by several priorities, and
one micro-batch after another, which always fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.schedule.check import replay
from autotune.schedule.classic import DeviceOrder, classic_orders, find_chain, zero_bubble_order
from autotune.schedule.list_schedule import Rule, list_order, priorities
from autotune.schedule.timing import Order, timetable
from autotune.workloads.blocks import INPUT, WEIGHT, BlockGraph, Timetable, half_name

_PATIENCE = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A schedule and its name."""

    name: str
    table: Timetable
    makespan_s: float


def portfolio(graph: BlockGraph, num_microbatches: int, fitting: tuple[int, ...]) -> Iterator[Member]:
    """The members that are valid schedules of this graph, backward in one piece."""
    orders = _whole_orders(graph, num_microbatches, fitting)
    yield from _members(graph, num_microbatches, orders)


def split_portfolio(
    graph: BlockGraph, parts: BlockGraph, num_microbatches: int, fitting: tuple[int, ...]
) -> Iterator[Member]:
    """Those of the graph with split backwards; `fitting` is an order of its blocks."""
    yield from _members(parts, num_microbatches, _split_orders(graph, parts, num_microbatches, fitting))


def _whole_orders(graph: BlockGraph, num: int, fitting: tuple[int, ...]) -> Iterator[tuple[str, Order]]:
    yield "one by one", _one_by_one(graph, num, fitting)
    if (chain := find_chain(graph)) is not None:
        yield from classic_orders(graph, chain, num)
    for name, priority in priorities(graph).items():
        yield name, list_order(graph, num, fitting, Rule(priority=priority))


def _split_orders(
    graph: BlockGraph, parts: BlockGraph, num: int, fitting: tuple[int, ...]
) -> Iterator[tuple[str, Order]]:
    if (chain := find_chain(graph)) is not None:
        for name, order in classic_orders(graph, chain, num):
            yield f"{name}, split", _in_parts(graph, parts, order)
        yield from _zero_bubble(graph, parts, num, fitting)
    for name, priority in priorities(parts).items():
        for patience in _PATIENCE:
            rule = Rule(priority=priority, patience=patience)
            yield f"{name}, split{', patient' * bool(patience)}", list_order(parts, num, fitting, rule)


def _zero_bubble(
    graph: BlockGraph, parts: BlockGraph, num: int, fitting: tuple[int, ...]
) -> Iterator[tuple[str, Order]]:
    """A closed form for one stage per device; with several (V-shaped), deepest first and weight halves last."""
    chain = find_chain(graph)
    if chain is None or not chain.backward or not all(graph.blocks[block].split for block in chain.backward):
        return
    if len(set(chain.device)) < len(chain.device):
        folded = chain.device == chain.device[::-1]
        rule = Rule(priority=priorities(parts)["deepest first"])
        yield "zero-bubble V" if folded else "zero-bubble, several stages", list_order(parts, num, fitting, rule)
        return
    yield "zero-bubble H1", zero_bubble_order(graph, chain, parts, num, depth=1)
    yield "zero-bubble H2", zero_bubble_order(graph, chain, parts, num, depth=2)


def _one_by_one(graph: BlockGraph, num: int, fitting: tuple[int, ...]) -> Order:
    return [
        [(block, microbatch) for microbatch in range(num) for block in fitting if device in graph.blocks[block].devices]
        for device in range(graph.num_devices)
    ]


def _in_parts(graph: BlockGraph, parts: BlockGraph, order: DeviceOrder) -> Order:
    """Each weight half directly after its input half."""
    pieces = {}
    for index, block in enumerate(graph.blocks):
        names = [half_name(block.name, half) for half in (INPUT, WEIGHT)] if block.split else [block.name]
        pieces[index] = [parts.index[name] for name in names]
    return [[(part, microbatch) for block, microbatch in one for part in pieces[block]] for one in order]


def _members(graph: BlockGraph, num: int, orders: Iterator[tuple[str, Order]]) -> Iterator[Member]:
    for name, order in orders:
        table = timetable(graph, num, order)
        if table is not None and not (found := replay(table)).faults:
            yield Member(name=name, table=table, makespan_s=found.makespan_s)
