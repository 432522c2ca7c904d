"""A data-parallel step as tasks, in compiled loops: thousands of plans a second need the expansion as fast as the run.

Per step and rank, in this order: load data, forward op by op, backward op by op (a unit of gradients is encoded as soon
as its last gradient is there), decode, update. A *unit* is what travels at once, a bucket or a partition; its transfer
waits for every rank. Without crossing the update waits for all units; with crossing a unit is updated on its own and
the next step's forward pass waits, op by op, for the units that hold its parameters.

Where gradients are accumulated, the forward ops are those of the first pass, which waits for parameters, and the backward ops
those of the last, which exchanges; everything between them is one task of each rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from autotune.simulate.engine import JOIN, TRANSFER, Floats, Ints, Tasks
from autotune.simulate.layout import Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCosts:
    """Seconds of everything in a step: rows are ranks, columns are ops (in forward order) or units."""

    data_s: Floats
    forward_s: Floats
    """Of the first pass."""
    backward_s: Floats
    """Of the last pass."""
    between_s: Floats
    """Per rank: from the first pass's forward to the last one's backward."""
    encode_s: Floats
    decode_s: Floats
    update_s: Floats
    """Per rank."""
    samples: Floats
    """Per rank: of the largest pass."""
    saved_bytes_per_sample: Floats
    """What each op keeps for its backward pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """What travels, in the order it is posted."""

    wire_bytes: Floats
    gradient_bytes: Floats
    """What is encoded and decoded."""
    codec: Ints
    """Its place in `autotune.workloads.plan.CODECS`."""
    rebuilt_op: Ints
    """The op whose gradient is rebuilt of factors when they arrive; -1: none."""
    ready_op: Ints
    """The op whose backward pass completes the unit."""
    first_op: Ints
    """The first op of the forward pass that reads its parameters."""
    priority: Ints
    fixed_s: Floats
    latency_s: Floats
    load_link: Ints
    load_bytes: Floats
    """What each unit (row) puts on each link (column)."""


def expand(costs: StepCosts, units: Units, layout: Layout) -> Tasks:
    """All steps of a plan."""
    links, seconds, priority, latency_s, credit_bytes, memory, loads = _expand(
        costs.data_s,
        costs.forward_s,
        costs.backward_s,
        costs.between_s,
        costs.encode_s,
        costs.decode_s,
        costs.update_s,
        costs.samples,
        costs.saved_bytes_per_sample,
        units.wire_bytes,
        units.ready_op,
        units.first_op,
        units.priority,
        units.fixed_s,
        units.latency_s,
        units.load_link,
        units.load_bytes,
        layout.num_steps,
        layout.crosses,
        layout.coded,
        layout.num_between,
        layout.per_rank,
        layout.per_step,
    )
    device, queue, num_before, next_from, next_tasks = links
    memory_device, memory_at_start, memory_at_end = memory
    load_from, load_link, load_bytes = loads
    return Tasks(
        device=device,
        seconds=seconds,
        priority=priority,
        num_before=num_before,
        next_from=next_from,
        next_tasks=next_tasks,
        queue=queue,
        credit_bytes=credit_bytes,
        latency_s=latency_s,
        load_from=load_from,
        load_link=load_link,
        load_bytes=load_bytes,
        memory_device=memory_device,
        memory_at_start=memory_at_start,
        memory_at_end=memory_at_end,
    )


@njit(cache=True)
def pass_seconds(arithmetic_s, fixed_s, per_sample_s, launch_s, samples):
    """Seconds of every op on every rank: max(arithmetic·b, fixed + per_sample·b) + launch; nothing for no samples."""
    taken = np.zeros(arithmetic_s.shape)
    for rank in range(taken.shape[0]):
        if samples[rank] > 0:
            for op in range(taken.shape[1]):
                traffic_s = fixed_s[rank, op] + per_sample_s[rank, op] * samples[rank]
                taken[rank, op] = max(arithmetic_s[rank, op] * samples[rank], traffic_s) + launch_s[rank, op]
    return taken


@njit(cache=True)
def _expand(
    data_s,
    forward_s,
    backward_s,
    between_s,
    encode_s,
    decode_s,
    update_s,
    samples,
    saved_bytes_per_sample,
    wire_bytes,
    ready_op,
    first_op,
    unit_priority,
    fixed_s,
    unit_latency_s,
    unit_link,
    unit_load,
    num_steps,
    crosses,
    coded,
    num_between,
    per_rank,
    per_step,
):
    num_ranks, num_ops, num_units = forward_s.shape[0], forward_s.shape[1], len(wire_bytes)
    codes = num_units if coded else 0
    num_tasks = num_steps * per_step

    device, seconds = np.full(num_tasks, TRANSFER, np.int64), np.zeros(num_tasks)
    priority, latency_s = np.zeros(num_tasks, np.int64), np.zeros(num_tasks)
    credit_bytes, memory_device = np.zeros(num_tasks), np.full(num_tasks, -1, np.int64)
    memory_at_start, memory_at_end = np.zeros(num_tasks), np.zeros(num_tasks)
    chain = num_ranks * per_rank
    num_edges = num_steps * (chain + num_ranks * num_units * 2 + num_units + num_ranks)
    num_edges += num_steps * num_ranks * (num_units + num_ops)
    source, target, edges = np.empty(num_edges, np.int64), np.empty(num_edges, np.int64), 0

    for step in range(num_steps):
        start = step * per_step
        sends = start + num_ranks * per_rank
        meet = sends + num_units
        for unit in range(num_units):
            task = sends + unit
            seconds[task], latency_s[task] = fixed_s[unit], unit_latency_s[unit]
            credit_bytes[task], priority[task] = wire_bytes[unit], unit_priority[unit]
            source[edges], target[edges] = task, meet
            edges += 1
        device[meet] = JOIN
        for rank in range(num_ranks):
            own = start + rank * per_rank
            forward, backward = own + 1, own + 1 + num_ops + num_between
            encode, decode = backward + num_ops, backward + num_ops + codes
            update = backward + num_ops + 2 * codes
            device[own : own + per_rank] = rank
            seconds[own] = data_s[rank]
            if step > 0:  # the step before has ended on this rank, but for updates that cross
                before = start - per_step + rank * per_rank
                if not crosses:
                    source[edges], target[edges] = before + per_rank - 1, own
                else:
                    source[edges], target[edges] = before + 2 * num_ops + num_between, own
                edges += 1
            last = own
            for op in range(num_ops):
                task = forward + op
                seconds[task] = forward_s[rank, op]
                memory_at_start[task] = saved_bytes_per_sample[op] * samples[rank]
                memory_device[task] = rank
                source[edges], target[edges] = last, task
                edges += 1
                last = task
            for task in range(forward + num_ops, backward):
                seconds[task] = between_s[rank]
                source[edges], target[edges] = last, task
                edges += 1
                last = task
            unit = 0
            for place in range(num_ops):
                op = num_ops - 1 - place
                task = backward + place
                seconds[task] = backward_s[rank, op]
                memory_at_end[task] = -(saved_bytes_per_sample[op] * samples[rank])
                memory_device[task] = rank
                source[edges], target[edges] = last, task
                edges += 1
                last = task
                while unit < num_units and ready_op[unit] >= op:
                    if coded:
                        code = encode + unit
                        seconds[code] = encode_s[rank, unit]
                        source[edges], target[edges] = last, code
                        edges += 1
                        last = code
                    source[edges], target[edges] = last, sends + unit
                    edges += 1
                    unit += 1
            if coded and not crosses:
                for unit in range(num_units):
                    code = decode + unit
                    seconds[code] = decode_s[rank, unit]
                    source[edges], target[edges] = last, code
                    source[edges + 1], target[edges + 1] = sends + unit, code
                    edges += 2
                    last = code
            if not crosses:
                seconds[update] = update_s[rank]
                source[edges], target[edges] = last, update
                source[edges + 1], target[edges + 1] = meet, update
                edges += 2
                continue
            for unit in range(num_units):
                task, landed = update + unit, sends + unit
                if coded:
                    code = decode + unit
                    seconds[code], priority[code] = decode_s[rank, unit], unit_priority[unit] - num_units
                    source[edges], target[edges] = landed, code
                    edges += 1
                    landed = code
                seconds[task] = update_s[rank] / num_units
                priority[task] = unit_priority[unit] - num_units
                source[edges], target[edges] = landed, task
                edges += 1
                if step + 1 < num_steps:
                    source[edges], target[edges] = task, start + per_step + rank * per_rank + 1 + first_op[unit]
                    edges += 1

    num_before, next_from = np.zeros(num_tasks, np.int64), np.zeros(num_tasks + 1, np.int64)
    for edge in range(edges):
        num_before[target[edge]] += 1
        next_from[source[edge] + 1] += 1
    for task in range(num_tasks):
        next_from[task + 1] += next_from[task]
    filled, next_tasks = next_from.copy(), np.empty(edges, np.int64)
    for edge in range(edges):
        next_tasks[filled[source[edge]]] = target[edge]
        filled[source[edge]] += 1

    num_links = len(unit_link)
    load_from = np.zeros(num_tasks + 1, np.int64)
    load_link = np.empty(num_steps * num_units * num_links, np.int64)
    load_bytes = np.empty(num_steps * num_units * num_links)
    loads = 0
    for step in range(num_steps):
        sends = step * per_step + num_ranks * per_rank
        load_from[step * per_step : sends] = loads
        for unit in range(num_units):
            load_from[sends + unit] = loads
            for j in range(num_links):
                if unit_load[unit, j] > 0:
                    load_link[loads] = unit_link[j]
                    load_bytes[loads] = unit_load[unit, j]
                    loads += 1
        load_from[sends + num_units : sends + num_units + 2] = loads
    return (
        (device, np.zeros(num_tasks, np.int64), num_before, next_from, next_tasks),
        seconds,
        priority,
        latency_s,
        credit_bytes,
        (memory_device, memory_at_start, memory_at_end),
        (load_from, load_link[:loads], load_bytes[:loads]),
    )
