"""A simulated step as spans, with the names and tracks of a traced step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.profilers.timeline import Span
from autotune.simulate.engine import Run
from autotune.simulate.layout import (
    BACKWARD,
    BARRIER,
    DATA,
    DECODE,
    ENCODE,
    FORWARD,
    SEND,
    UPDATE,
    Labels,
)
from autotune.simulate.task_graph import JOIN, TRANSFER, Floats, Tasks
from autotune.workloads.graph import OpGraph


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """One run of the engine for one plan."""

    tasks: Tasks
    labels: Labels
    run: Run
    num_steps: int
    step_s: float
    """Seconds that one more step adds in steady state."""

    def among(self, ranks: Sequence[int], num_ranks: int) -> Simulated:
        """The same run in a job of `num_ranks` that uses these ranks only: rank n was the n-th of them."""
        number = np.array([*ranks, JOIN, TRANSFER], np.int64)  # -2 and -1, which are no ranks, stay
        labels = replace(self.labels, rank=number[self.labels.rank])
        run = replace(
            self.run,
            peak_bytes=spread(self.run.peak_bytes, ranks, num_ranks),
            peak_at_s=spread(self.run.peak_at_s, ranks, num_ranks),
        )
        tasks = replace(self.tasks, device=number[self.tasks.device], memory_device=number[self.tasks.memory_device])
        return replace(self, tasks=tasks, labels=labels, run=run)


def spread(values: Floats, ranks: Sequence[int], num_ranks: int) -> Floats:
    """Values of these ranks among those of all ranks, which are 0 for the others."""
    found = np.zeros(num_ranks)
    found[list(ranks)] = values
    return found


_KINDS = {
    DATA: ("host", "data", "data"),
    FORWARD: ("compute", "forward", "{op}"),
    BACKWARD: ("compute", "backward", "{op}"),
    ENCODE: ("compute", "backward", "encode {index}"),
    DECODE: ("compute", "optimizer", "decode {index}"),
    UPDATE: ("compute", "optimizer", "optimizer"),
}


def spans(
    graph: OpGraph, simulated: Simulated, wire_bytes: Sequence[float], names: Mapping[int, str] | None = None
) -> Iterator[Span]:
    """Of the last step, from its start. `wire_bytes`: of each fusion buffer; `names`: of the passes of a pipeline."""
    named = names or {}
    labels, run, sources = simulated.labels, simulated.run, _sources(simulated)
    chosen = np.flatnonzero(labels.step == simulated.num_steps - 1)
    zero_s = float(run.start_s[chosen].min()) if simulated.num_steps > 1 else 0.0
    last_backward: dict[int, float] = {}
    first_update: dict[int, float] = {}
    for task in chosen.tolist():
        kind, rank, index = int(labels.kind[task]), int(labels.rank[task]), int(labels.index[task])
        start_s, end_s = float(run.start_s[task]) - zero_s, float(run.end_s[task]) - zero_s
        if kind == BARRIER:
            continue
        if kind == SEND:
            yield from _sent(simulated, task, sources[task], wire_bytes, zero_s)
            continue
        track, name, pattern = _KINDS[kind]
        op = graph.ops[index].name if kind in (FORWARD, BACKWARD) and index < len(graph.ops) else "passes between"
        if kind in (BACKWARD, ENCODE):
            last_backward[rank] = max(last_backward.get(rank, 0.0), end_s)
        if kind in (DECODE, UPDATE):
            first_update[rank] = min(first_update.get(rank, np.inf), start_s)
        if end_s > start_s:
            text = named.get(task) or pattern.format(op=op, index=index)
            yield Span(rank=rank, track=track, kind=name, op=text, start_s=start_s, end_s=end_s)
    for rank, blocked_s in last_backward.items():
        if (until_s := first_update.get(rank, blocked_s)) > blocked_s:
            yield Span(rank=rank, track="host", kind="wait", op="wait", start_s=blocked_s, end_s=until_s)


def _sent(
    simulated: Simulated, send: int, sources: Sequence[int], wire_bytes: Sequence[float], zero_s: float
) -> Iterator[Span]:
    """A transfer: on each rank a span that starts when the rank's data is ready."""
    labels, run = simulated.labels, simulated.run
    buffer, end_s = int(labels.index[send]), float(run.end_s[send]) - zero_s
    num_bytes = int(wire_bytes[buffer]) if buffer < len(wire_bytes) else 0
    own = int(labels.rank[send])
    for task in sources:
        rank = int(labels.rank[task])
        if rank >= 0 and own in (-1, rank):
            start_s = float(run.end_s[task]) - zero_s
            name = f"all-reduce {buffer}" if own < 0 else f"send {buffer}"
            yield Span(rank=rank, track="comm", kind="comm", op=name, start_s=start_s, end_s=end_s, num_bytes=num_bytes)


def _sources(simulated: Simulated) -> dict[int, list[int]]:
    """For each transfer, the tasks that it waited for."""
    tasks, found = simulated.tasks, defaultdict[int, list[int]](list)
    sources = np.repeat(np.arange(tasks.num_tasks), np.diff(tasks.next_from))
    edges = np.flatnonzero(simulated.labels.kind[tasks.next_tasks] == SEND)
    for source, send in zip(sources[edges].tolist(), tasks.next_tasks[edges].tolist(), strict=True):
        found[send].append(source)
    return found
