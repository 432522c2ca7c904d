"""The assignment of samples of unequal work (tokens) to ranks, instead of slices of a batch.

Longest processing time first on uniform machines (Gonzalez, Ibarra and Sahni, 1977): in order of decreasing work, each
sample goes to the rank that would finish it earliest if the speeds of ranks were their shares. The number of samples of a
rank then varies from step to step, its share of the work does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def deal(work: Tensor, shares: Sequence[int], min_samples: int = 1) -> Tensor:
    """The rank of each sample, such that the work of ranks is proportional to their shares; a share of 0 gets none.

    A rank with any samples has at least `min_samples`, where there are that many.
    """
    able = [rank for rank, share in enumerate(shares) if share > 0]
    speeds = np.array([shares[rank] for rank in able], dtype=np.float64)
    loads = np.zeros(len(able))
    owners = [0] * len(work)
    for position in torch.sort(work, descending=True, stable=True).indices.tolist():
        amount = float(work[position])
        place = int(np.argmin((loads + amount) / speeds))
        loads[place] += amount
        owners[position] = able[place]
    if min_samples > 1:
        _keep_minimum(owners, work.tolist(), shares, min_samples)
    return torch.tensor(owners, dtype=torch.long)


def _keep_minimum(owners: list[int], work: list[float], shares: Sequence[int], min_samples: int) -> None:
    """A rank with too few samples gets the smallest one of the most loaded rank that has more than the minimum. If there is
    no such rank, it passes on its own samples. Each iteration reduces the ranks or the missing samples, so the loop ends.
    """
    while True:
        held: dict[int, list[int]] = {rank: [] for rank in sorted(set(owners))}
        for position, rank in enumerate(owners):
            held[rank].append(position)
        short = [rank for rank, positions in held.items() if len(positions) < min_samples]
        if not short or len(held) == 1:
            return
        rank = max(short, key=lambda rank: len(held[rank]))
        if spare := [rank for rank, positions in held.items() if len(positions) > min_samples]:
            loads = {rank: sum(work[position] for position in held[rank]) / shares[rank] for rank in spare}
            moved, to = [min(held[max(loads, key=loads.__getitem__)], key=work.__getitem__)], rank
        else:
            others = [other for other in short if other != rank] or [other for other in held if other != rank]
            moved, to = held[rank], others[0]
        for position in moved:
            owners[position] = to
