"""A data-parallel step as tasks, in compiled loops: thousands of plans a second need the expansion as fast as the run.

The tasks of a rank in a step, in order: load data, forward op by op, backward op by op (a fusion buffer is encoded when
its last gradient is ready), decode, update. Buffers of a schedule are decoded as soon as they have arrived, between backward ops
as well; buckets after the backward pass. A fusion buffer is one transfer: a bucket, or a partition of a buffer. Its
transfer starts when it is ready on every rank. Without cross-step overlap, the update starts after all transfers. With it,
each buffer is updated when its transfer completes, and the next step's forward ops wait for the buffers of their parameters.

With gradient accumulation, the forward ops are those of the first pass, which waits for parameters, and the backward ops
those of the last pass, whose gradients are sent. Everything between them is one task per rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from autotune.simulate.layout import Layout
from autotune.simulate.roofline import line_s
from autotune.simulate.task_graph import JOIN, TRANSFER, Floats, Ints, Tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCosts:
    """Seconds of everything in a step: rows are ranks, columns are ops (in forward order) or fusion buffers."""

    data_s: Floats
    forward_s: Floats
    """Of the first pass."""
    backward_s: Floats
    """Of the last pass."""
    between_s: Floats
    """Per rank: from the end of the first forward to the start of the last backward."""
    encode_s: Floats
    decode_s: Floats
    update_s: Floats
    """Per rank."""
    samples: Floats
    """Per rank: samples of the largest pass."""
    saved_bytes_per_sample: Floats
    """Activations that each op saves for backward."""

    def of(self, rows: Ints) -> StepCosts:
        """Of these ranks only."""
        return StepCosts(
            data_s=self.data_s[rows],
            forward_s=self.forward_s[rows],
            backward_s=self.backward_s[rows],
            between_s=self.between_s[rows],
            encode_s=self.encode_s[rows] if len(self.encode_s) else self.encode_s,
            decode_s=self.decode_s[rows] if len(self.decode_s) else self.decode_s,
            update_s=self.update_s[rows],
            samples=self.samples[rows],
            saved_bytes_per_sample=self.saved_bytes_per_sample,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FusionBuffers:
    """All transfers of a step, in the order in which they are posted."""

    wire_bytes: Floats
    gradient_bytes: Floats
    """Bytes that are encoded and decoded."""
    codec: Ints
    """Index in `autotune.workloads.plan.CODECS`."""
    rebuilt_op: Ints
    """The op whose gradient is the product of received sufficient factors; -1: none."""
    ready_op: Ints
    """The op whose backward pass completes the buffer."""
    first_op: Ints
    """The first op of the forward pass that reads its parameters."""
    priority: Ints
    fixed_s: Floats
    latency_s: Floats
    load_link: Ints
    """-1 between the links of one phase and those of the next."""
    load_bytes: Floats
    """Bytes of each buffer (row) on each link (column)."""


def expand(costs: StepCosts, buffers: FusionBuffers, layout: Layout) -> Tasks:
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
        buffers.wire_bytes,
        buffers.ready_op,
        buffers.first_op,
        buffers.priority,
        buffers.fixed_s,
        buffers.latency_s,
        buffers.load_link,
        buffers.load_bytes,
        layout.num_steps,
        layout.crosses_steps,
        layout.coded,
        layout.decodes_early,
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


_line_s = njit()(line_s)
"""The same function, compiled."""


@njit(cache=True)
def pass_seconds(arithmetic_s, fixed_s, per_sample_s, launch_s, samples):
    """Seconds of every op on every rank (`autotune.simulate.roofline.line_s`)."""
    taken = np.zeros(arithmetic_s.shape)
    for rank in range(taken.shape[0]):
        for op in range(taken.shape[1]):
            taken[rank, op] = _line_s(
                arithmetic_s[rank, op], fixed_s[rank, op], per_sample_s[rank, op], launch_s[rank, op], samples[rank]
            )
    return taken


@njit(cache=True)
def between_points(fitted, num_points, points, measured, samples):
    """Replaces fitted seconds (ranks, ops) by those between the measured points, where `samples` lies among a rank's points."""
    for rank in range(fitted.shape[0]):
        count = num_points[rank]
        if count == 0 or samples[rank] < points[rank, 0] or samples[rank] > points[rank, count - 1]:
            continue
        right = 0
        while points[rank, right] < samples[rank]:
            right += 1
        left = max(right - 1, 0)
        width = points[rank, right] - points[rank, left]
        part = (samples[rank] - points[rank, left]) / width if width > 0.0 else 0.0
        for op in range(fitted.shape[1]):
            first = measured[rank, op, left]
            fitted[rank, op] = first + part * (measured[rank, op, right] - first) if right > left else first


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
    buffer_priority,
    fixed_s,
    buffer_latency_s,
    buffer_link,
    buffer_load,
    num_steps,
    crosses_steps,
    coded,
    decodes_early,
    num_between,
    per_rank,
    per_step,
):
    num_ranks, num_ops, num_buffers = forward_s.shape[0], forward_s.shape[1], len(wire_bytes)
    codes = num_buffers if coded else 0
    num_tasks = num_steps * per_step

    device, seconds = np.full(num_tasks, TRANSFER, np.int64), np.zeros(num_tasks)
    priority, latency_s = np.zeros(num_tasks, np.int64), np.zeros(num_tasks)
    credit_bytes, memory_device = np.zeros(num_tasks), np.full(num_tasks, -1, np.int64)
    memory_at_start, memory_at_end = np.zeros(num_tasks), np.zeros(num_tasks)
    chain = num_ranks * per_rank
    num_edges = num_steps * (chain + num_ranks * num_buffers * 2 + num_buffers + num_ranks)
    num_edges += num_steps * num_ranks * (num_buffers + num_ops)
    source, target, edges = np.empty(num_edges, np.int64), np.empty(num_edges, np.int64), 0

    for step in range(num_steps):
        start = step * per_step
        sends = start + num_ranks * per_rank
        barrier = sends + num_buffers
        for buffer in range(num_buffers):
            task = sends + buffer
            seconds[task], latency_s[task] = fixed_s[buffer], buffer_latency_s[buffer]
            credit_bytes[task], priority[task] = wire_bytes[buffer], buffer_priority[buffer]
            source[edges], target[edges] = task, barrier
            edges += 1
        device[barrier] = JOIN
        for rank in range(num_ranks):
            own = start + rank * per_rank
            forward, backward = own + 1, own + 1 + num_ops + num_between
            encode, decode = backward + num_ops, backward + num_ops + codes
            update = backward + num_ops + 2 * codes
            device[own : own + per_rank] = rank
            seconds[own] = data_s[rank]
            if step > 0:  # the previous step has ended on this rank, except for updates that overlap with this step
                before = start - per_step + rank * per_rank
                if not crosses_steps:
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
            buffer = 0
            for place in range(num_ops):
                op = num_ops - 1 - place
                task = backward + place
                seconds[task] = backward_s[rank, op]
                memory_at_end[task] = -(saved_bytes_per_sample[op] * samples[rank])
                memory_device[task] = rank
                source[edges], target[edges] = last, task
                edges += 1
                last = task
                while buffer < num_buffers and ready_op[buffer] >= op:
                    if coded:
                        code = encode + buffer
                        seconds[code] = encode_s[rank, buffer]
                        source[edges], target[edges] = last, code
                        edges += 1
                        last = code
                    source[edges], target[edges] = last, sends + buffer
                    edges += 1
                    buffer += 1
            if coded and not crosses_steps:
                for buffer in range(num_buffers):
                    code = decode + buffer
                    seconds[code] = decode_s[rank, buffer]
                    source[edges + 1], target[edges + 1] = sends + buffer, code
                    if decodes_early:
                        priority[code] = buffer_priority[buffer] - num_buffers
                        source[edges], target[edges] = code, update
                    else:
                        source[edges], target[edges] = last, code
                        last = code
                    edges += 2
            if not crosses_steps:
                seconds[update] = update_s[rank]
                source[edges], target[edges] = last, update
                source[edges + 1], target[edges + 1] = barrier, update
                edges += 2
                continue
            for buffer in range(num_buffers):
                task, completed = update + buffer, sends + buffer
                if coded:
                    code = decode + buffer
                    seconds[code], priority[code] = decode_s[rank, buffer], buffer_priority[buffer] - num_buffers
                    source[edges], target[edges] = completed, code
                    edges += 1
                    completed = code
                seconds[task] = update_s[rank] / num_buffers
                priority[task] = buffer_priority[buffer] - num_buffers
                source[edges], target[edges] = completed, task
                edges += 1
                if step + 1 < num_steps:
                    source[edges], target[edges] = task, start + per_step + rank * per_rank + 1 + first_op[buffer]
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

    num_links = len(buffer_link)
    load_from = np.zeros(num_tasks + 1, np.int64)
    load_link = np.empty(num_steps * num_buffers * num_links, np.int64)
    load_bytes = np.empty(num_steps * num_buffers * num_links)
    loads = 0
    for step in range(num_steps):
        sends = step * per_step + num_ranks * per_rank
        load_from[step * per_step : sends] = loads
        for buffer in range(num_buffers):
            load_from[sends + buffer] = loads
            for j in range(num_links):
                if buffer_load[buffer, j] > 0 or buffer_link[j] < 0:
                    load_link[loads] = buffer_link[j]
                    load_bytes[loads] = buffer_load[buffer, j]
                    loads += 1
        load_from[sends + num_buffers : sends + num_buffers + 2] = loads
    return (
        (device, np.zeros(num_tasks, np.int64), num_before, next_from, next_tasks),
        seconds,
        priority,
        latency_s,
        credit_bytes,
        (memory_device, memory_at_start, memory_at_end),
        (load_from, load_link[:loads], load_bytes[:loads]),
    )
