"""The `StepStats` of a simulated step: simulated and measured steps make the same windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.profilers.step_stats import Part, PartSums, StepStats
from autotune.simulate.layout import BACKWARD, ENCODE, FORWARD, SEND
from autotune.simulate.spans import Simulated
from autotune.simulate.task_graph import Floats
from autotune.workloads.plan import Plan


def simulated_step(simulated: Simulated, plan: Plan, wire_bytes: Sequence[float], *, step: int = 0) -> list[StepStats]:
    """The last simulated step of a data-parallel plan, by rank. `wire_bytes`: of each message."""
    labels, num_ranks = simulated.labels, len(plan.batch.samples)
    is_last = labels.step == simulated.num_steps - 1
    step_s = simulated.step_s
    sums = _part_sums(simulated, plan, np.asarray(wire_bytes, np.float64), is_last, num_ranks)
    busy_s = _seconds(simulated, is_last & (labels.rank >= 0), num_ranks)
    forward_s = _seconds(simulated, is_last & (labels.kind == FORWARD), num_ranks)
    backward_s = _seconds(simulated, is_last & ((labels.kind == BACKWARD) | (labels.kind == ENCODE)), num_ranks)
    crosses = plan.comm.overlaps_steps
    return [
        StepStats(
            rank=rank,
            step=step,
            samples=plan.batch.samples[rank],
            step_s=step_s,
            compute_s=float(busy_s[rank]),
            forward_s=float(forward_s[rank]),
            backward_s=float(backward_s[rank]),
            wait_s=max(step_s - float(busy_s[rank]), 0.0),
            # With cross-step overlap all waiting is in the forward pass.
            stalled_s=max(step_s - float(busy_s[rank]), 0.0) if crosses else 0.0,
            parts=sums[rank],
        )
        for rank in range(num_ranks)
    ]


def _seconds(simulated: Simulated, chosen: np.ndarray, num_ranks: int) -> Floats:
    """Seconds of the chosen tasks, by rank."""
    ranks, seconds = simulated.labels.rank[chosen], simulated.tasks.seconds[chosen]
    return np.bincount(ranks, weights=seconds, minlength=num_ranks).astype(np.float64)


def _part_sums(
    simulated: Simulated, plan: Plan, wire_bytes: Floats, is_last: np.ndarray, num_ranks: int
) -> list[PartSums]:
    labels, tasks, run = simulated.labels, simulated.tasks, simulated.run
    sources = np.repeat(np.arange(tasks.num_tasks), np.diff(tasks.next_from))
    targets = tasks.next_tasks
    chosen = (labels.kind[targets] == SEND) & is_last[targets]
    sources, targets = sources[chosen], targets[chosen]
    ready_s, end_s, num_bytes = run.end_s[sources], run.end_s[targets], wire_bytes[labels.index[targets]]
    # With a schedule a rank posts a message when it is scheduled; otherwise when it is ready, and then waits for the others.
    posted_s = run.start_s[targets] if plan.comm.is_scheduled else ready_s
    by_rank: list[list[Part]] = [[] for _ in range(num_ranks)]
    columns = (labels.rank[sources], num_bytes, ready_s, posted_s, end_s)
    for rank, *values in zip(*(column.tolist() for column in columns), strict=True):
        by_rank[rank].append(Part(*values))
    return [PartSums.of(parts) for parts in by_rank]
