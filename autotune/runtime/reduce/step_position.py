"""Checks that all ranks send the gradients of the same step.

A rank's position follows from the batches, optimizer steps and checkpoint loads of its script so far. Where rank 0
schedules partitions it compares the positions of all ranks. Where no rank schedules anything, `CHECKS` elements behind
the gradients carry the position through the all-reduce, and every rank finds a rank that deviates from their sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

POSITIONS = 16
"""Positions are taken modulo this, so that float32 holds their sums over a thousand ranks exactly."""
CHECKS = 3
"""Elements that one position takes behind the gradients: see `odd_rank`."""


def position_of(num_batches: int, num_steps: int, num_loads: int) -> int:
    """The position of a rank in its script. A rank that skips a batch, a step or both is at another position."""
    return (2 * num_batches + num_steps + 5 * num_loads) % POSITIONS


def checks_of(position: int, rank: int) -> list[int]:
    """What a rank adds to the sums that `odd_rank` reads."""
    return [position, position * (rank + 1), position * position]


def odd_rank(checks: Tensor, num_ranks: int, rank: int, position: int) -> int | None:
    """None if every rank has sent `position`; else a rank that has sent another one.

    `checks`: the sums over ranks of t, t·(rank+1) and t². If all ranks but rank r have sent t, these sums about t are
    d, d·(r+1) and d². If this rank is the one that deviates, the sums do not have this form.
    """
    total, by_rank, squares = map(round, checks.tolist())
    away = total - num_ranks * position
    variance = squares - 2 * position * total + num_ranks * position * position
    if variance == 0:
        return None
    moment = by_rank - position * num_ranks * (num_ranks + 1) // 2
    is_one = away * away == variance and moment % away == 0
    return moment // away - 1 if is_one else rank


def rarest(positions: Sequence[int]) -> int:
    """The rank whose position the fewest ranks share; of several the last."""
    return min(range(len(positions)), key=lambda rank: (positions.count(positions[rank]), -rank))


def out_of_step(rank: int) -> str:
    """The error message for a rank whose gradients belong to another step than those of the other ranks."""
    return (
        f"rank {rank} sends the gradients of another step than the other ranks: it has skipped a batch or a step, or has "
        "loaded a checkpoint alone; every rank must run backward() and step() for every batch, so let all ranks decide "
        "alike, by job.mean(...) or by gradients, which are those of all ranks"
    )


def ended_early(rank: int, step: int) -> str:
    """The error message for a rank that has ended while another one waits for its gradients."""
    return (
        f"rank {rank} has ended its training while this rank waits for its gradients of step {step}: every rank must "
        "run the same number of backward passes"
    )
