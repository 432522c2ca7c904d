"""Replicas of a stage that take whole micro-batches round-robin: which replica takes which, and in which order.

PipeDream deals micro-batches to the replicas of a stage one after another. Here replicas may take unlike numbers of them: each
micro-batch goes to the replica that is furthest behind its share. The order of a stage is that of one device which
admits as many micro-batches as all replicas from here to the last stage together; each replica follows its part of it. With as many
replicas at every stage, each pipeline of replicas runs the classic schedule on its own micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.workloads.stage_order import Pass, classic_passes, stage_passes


def turns(weights: Sequence[int], micro_batches: int) -> tuple[int, ...]:
    """The replica that takes each micro-batch. `weights`: in proportion to the numbers that replicas take."""
    total, taken, found = sum(weights), [0] * len(weights), []
    numbers = [weight * micro_batches // total for weight in weights]
    able = [replica for replica, number in enumerate(numbers) if number]
    for _ in range(sum(numbers)):
        able = [replica for replica in able if taken[replica] < numbers[replica]]
        chosen = min(able, key=lambda replica: ((taken[replica] + 1) / numbers[replica], replica))
        taken[chosen] += 1
        found.append(chosen)
    return tuple(found)


def replica_passes(
    schedule: str, num_replicas: Sequence[int], takers: Sequence[Sequence[int]], order: Sequence[str] = ()
) -> tuple[tuple[tuple[Pass, ...], ...], ...]:
    """Per stage and replica: its passes in order. `takers`: per stage, the replica of each micro-batch.

    A stage admits no fewer micro-batches at once than the next, so that no order waits for itself.
    """
    num_stages, micro_batches = len(num_replicas), len(takers[0])
    if order:
        merged = stage_passes(schedule, num_stages, micro_batches, order)
    else:
        merged = tuple(
            tuple(classic_passes(schedule, micro_batches, sum(num_replicas[stage:]), sum(num_replicas[:stage])))
            for stage in range(num_stages)
        )
    found = []
    for stage, passes in enumerate(merged):
        own: list[list[Pass]] = [[] for _ in range(num_replicas[stage])]
        for one in passes:
            own[takers[stage][one[1]]].append(one)
        found.append(tuple(map(tuple, own)))
    return tuple(found)
