"""Ranks with synthetic times, and a loop that applies the moves of a batch controller."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autotune.online.batch_controller import BatchController, Move
from autotune.workloads.split import Bounds, RankCost, balanced, bounds, even

Speeds = Callable[[int], Sequence[float]]
"""Samples per second of each rank in a step."""


@dataclass
class Job:
    """A job on simulated ranks: true times, reported times, and the resulting moves and splits."""

    speeds: Speeds
    total: int = 64
    fixed_s: float = 0.0
    comm_s: float = 0.1
    noise: float = 0.0
    comm_noise: float = 0.0
    """Of the time beyond computing, as a share of the slowest rank's."""
    reported: Callable[[int, int], float] = lambda rank, step: 1.0
    """The time that a rank reports, as a share of its true time."""
    slow_steps: dict[tuple[int, int], float] = field(default_factory=dict)
    """(step, rank) -> factor of the rank's time."""
    limits: Bounds | None = None
    delay: int = 2
    """Steps from a proposal to its effect."""
    every: int = 1
    seed: int = 0
    moves: list[tuple[int, Move]] = field(default_factory=list)
    splits: list[tuple[int, ...]] = field(default_factory=list)
    compute_s: list[list[float]] = field(default_factory=list)
    """True ones, without noise."""

    def run(self, num_steps: int) -> Job:
        generator = random.Random(self.seed)
        num_ranks = len(self.speeds(0))
        limits = self.limits or bounds(num_ranks, self.total)
        controller = BatchController(limits, self.total)
        samples, coming = even(self.total, limits), {}
        for step in range(num_steps):
            samples = coming.pop(step, samples)
            speeds = self.speeds(step)
            true = [self.fixed_s + count / speed for count, speed in zip(samples, speeds, strict=True)]
            took = [
                seconds * max(generator.gauss(1, self.noise), 0.5) * self.slow_steps.get((step, rank), 1.0)
                for rank, seconds in enumerate(true)
            ]
            reported = [seconds * self.reported(rank, step) for rank, seconds in enumerate(took)]
            self.splits.append(samples)
            self.compute_s.append(true)
            waited_s = self.comm_s + (max(true) * generator.gauss(0, self.comm_noise) if self.comm_noise else 0.0)
            controller.observe(step, samples, reported, max(took) + waited_s)
            if step % self.every == 0 and (move := controller.propose(step)) is not None:
                self.moves.append((step, move))
                coming[step + self.delay] = move.samples
        return self

    def imbalance(self, step: int) -> float:
        times = self.compute_s[step]
        return max(times) / (sum(times) / len(times)) - 1

    def least_imbalance(self) -> float:
        """Of the exact optimum in whole samples, for the speeds of the first step."""
        speeds = self.speeds(0)
        costs = [RankCost(fixed_s=self.fixed_s, per_sample_s=1 / speed) for speed in speeds]
        split = balanced(costs, self.total, bounds(len(speeds), self.total))
        times = [self.fixed_s + count / speed for count, speed in zip(split, speeds, strict=True)]
        return max(times) / (sum(times) / len(times)) - 1 + 1e-9

    def of_ideal(self, step: int) -> float:
        """Throughput as a share of the sum of all ranks' speeds."""
        return self.total / max(self.compute_s[step]) / sum(self.speeds(step))
