"""Seconds of the passes of a step on each rank, for workloads that accumulate the gradients of several passes.

The passes of a rank are nearly equal (`Loop.passes`): some have one sample more. Every pass pays the fixed costs. Only the last
pass sends gradients, so the time between the first forward and the last backward is one figure:

    between = Σ (forward + backward of every pass) - forward of the first - backward of the last
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.simulate.cost_tables import Costs
from autotune.simulate.task_graph import Floats
from autotune.workloads.workload import Loop


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPasses:
    """Rows are ranks, columns ops."""

    forward_s: Floats
    """Of the first pass."""
    backward_s: Floats
    """Of the last pass."""
    between_s: Floats
    """Per rank."""
    number: Floats
    """Per rank: number of passes."""
    largest: Floats
    """Per rank: samples of its largest pass, which is the first."""


def step_passes(costs: Costs, loop: Loop, samples: Sequence[int]) -> StepPasses:
    """The passes of every rank in a step."""
    if loop.accumulate == 1:
        taken = np.array(samples, np.float64)
        forward_s, backward_s = costs.passes(taken)
        nothing, one = np.zeros(len(samples)), np.ones(len(samples))
        return StepPasses(forward_s=forward_s, backward_s=backward_s, between_s=nothing, number=one, largest=taken)
    cut = [loop.passes(count) or (0,) for count in samples]
    number = np.array([len(sizes) for sizes in cut], np.float64)
    first, last = (np.array([sizes[place] for sizes in cut], np.float64) for place in (0, -1))
    num_large = np.array([sizes.count(sizes[0]) for sizes in cut], np.float64)
    (forward_s, large_s), (small_s, backward_s) = costs.passes(first), costs.passes(last)
    # Where all passes are equal, `num_large` is all of them.
    total_s = num_large * _sums(forward_s, large_s) + (number - num_large) * _sums(small_s, backward_s)
    between_s = np.maximum(total_s - forward_s.sum(axis=1) - backward_s.sum(axis=1), 0.0)
    return StepPasses(forward_s=forward_s, backward_s=backward_s, between_s=between_s, number=number, largest=first)


def _sums(forward_s: Floats, backward_s: Floats) -> Floats:
    """Of all ops."""
    taken: Floats = forward_s.sum(axis=1) + backward_s.sum(axis=1)
    return taken
