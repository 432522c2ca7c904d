"""Samples of unequal work (tokens) are dealt instead of sliced.

The largest first, each to the rank that would be done with it earliest if ranks were as fast as their shares (the
longest-processing-time rule on uniform machines; Gonzalez, Ibarra and Sahni, 1977). A rank's number of samples then varies
from step to step, its share of the work does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def deal(work: Tensor, shares: Sequence[int], min_samples: int = 1) -> Tensor:
    """The rank of each of these samples, such that the work of ranks is as their shares; one without a share gets none.

    A rank that has any has `min_samples` at least, where there are so many.
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
    """A rank with too few samples gets the smallest one of the slowest rank that can spare it; if none can, it hands on
    its own. Each round leaves fewer ranks or fewer missing samples, so there is a last one.
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
