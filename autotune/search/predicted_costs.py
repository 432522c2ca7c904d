"""What a simulator knows of each rank's computing, as a line: for splits before anything is measured."""

from __future__ import annotations

import numpy as np

from autotune.simulate.simulator import Simulator
from autotune.workloads.split import RankCost


def rank_costs(simulator: Simulator) -> list[RankCost]:
    """Computing of each rank as a line through an even share and twice that."""
    costs, total = simulator.costs, simulator.info.global_batch
    size = len(costs.cluster.devices)
    share = max(total / size, 1.0)
    times = [
        sum(part.sum(axis=1) for part in costs.passes(samples)) + costs.data.at(samples)
        for samples in (np.full(size, share), np.full(size, 2 * share))
    ]
    slopes = (times[1] - times[0]) / share
    return [
        RankCost(fixed_s=float(max(first - slope * share, 0.0)), per_sample_s=float(slope))
        for first, slope in zip(times[0], slopes, strict=True)
    ]
