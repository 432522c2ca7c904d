"""Whole samples for ranks of unequal speed: the sum is exact, minimums and caps are kept.

Two divisions of a batch. `proportional` gives shares close to given weights by largest remainders, what DBS
(arXiv 2007.11831) intends; its public code rounds each share on its own and breaks Σb = B. `balanced` minimises the
slowest rank's time a_i + c_i·b_i exactly, which rounding does not: 64 samples over speeds 1, 1/1.5, 1/2, 1/4 take a
time of 28 when rounded and 27 when balanced.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.workloads.errors import InfeasiblePlanError, SpecError

_ALL = 2**62
_HALVINGS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Fewest and most samples of each rank; the cap is what its memory holds."""

    minimums: tuple[int, ...]
    caps: tuple[int, ...]

    def check(self, total: int) -> None:
        """Refuse bounds that no split of `total` can keep."""
        short = [rank for rank, (low, high) in enumerate(zip(self.minimums, self.caps, strict=True)) if low > high]
        if short:
            raise InfeasiblePlanError(
                f"the memory of rank {short[0]} holds {self.caps[short[0]]} samples but its minimum is "
                f"{self.minimums[short[0]]}: use a smaller model, or a device with more memory"
            )
        if sum(self.minimums) > total:
            raise SpecError(
                f"a global batch of {total} cannot give {len(self.minimums)} ranks their minimum of "
                f"{max(self.minimums)} each: use a batch of at least {sum(self.minimums)}, or fewer ranks"
            )
        if sum(self.caps) < total:
            raise InfeasiblePlanError(
                f"a global batch of {total} does not fit: the devices' memory holds {sum(self.caps)} samples "
                f"{self.caps}: use a smaller batch, or devices with more memory"
            )


def bounds(num_ranks: int, total: int, *, minimum: int = 1, caps: Sequence[int] | None = None) -> Bounds:
    """The same minimum for every rank, and no cap but the batch itself unless given."""
    return Bounds(minimums=(minimum,) * num_ranks, caps=tuple(min(cap, total) for cap in caps or [total] * num_ranks))


def even(total: int, limits: Bounds) -> tuple[int, ...]:
    """The default split."""
    return proportional([1.0] * len(limits.caps), total, limits)


def proportional(weights: Sequence[float], total: int, limits: Bounds) -> tuple[int, ...]:
    """Samples in proportion to `weights` as near as whole numbers and bounds allow."""
    limits.check(total)
    if any(not math.isfinite(weight) or weight < 0 for weight in weights):
        raise SpecError(f"weights {list(weights)} of the batch split must be finite and not negative")
    largest = max(weights)
    ideal = _fill([weight / largest if largest > 0 else 1.0 for weight in weights], total, limits)
    lows, highs = limits.minimums, limits.caps
    samples = [min(max(int(share), low), high) for share, low, high in zip(ideal, lows, highs, strict=True)]
    # Floats choose the shape only; integers make the sum, so it has no rounding error.
    missing = total - sum(samples)
    sign = 1 if missing > 0 else -1
    queue = [
        (sign * (samples[i] - ideal[i]), i) for i in range(len(samples)) if lows[i] <= samples[i] + sign <= highs[i]
    ]
    heapq.heapify(queue)
    for _ in range(abs(missing)):
        _, i = heapq.heappop(queue)
        samples[i] += sign
        if lows[i] <= samples[i] + sign <= highs[i]:
            heapq.heappush(queue, (sign * (samples[i] - ideal[i]), i))
    return tuple(samples)


def _fill(weights: Sequence[float], total: int, limits: Bounds) -> list[float]:
    """Shares λ·w clipped to the bounds, with λ such that they sum to `total`: fix the clipped ranks, share out the rest."""
    ideal = [0.0] * len(weights)
    free = set(range(len(weights)))
    rest = float(total)
    while free:
        weight = sum(weights[i] for i in free)
        shares = {i: rest * weights[i] / weight if weight > 0 else rest / len(free) for i in free}
        low = {i for i in free if shares[i] < limits.minimums[i]}
        high = {i for i in free if shares[i] > limits.caps[i]}
        # Clip the side that is off by more first: clipping it may bring the other side back within bounds.
        short = sum(limits.minimums[i] - shares[i] for i in low)
        over = sum(shares[i] - limits.caps[i] for i in high)
        clipped = low if short >= over else high
        if not clipped:
            return [shares.get(i, ideal[i]) for i in range(len(weights))]
        for i in clipped:
            ideal[i] = float(limits.minimums[i] if clipped is low else limits.caps[i])
            rest -= ideal[i]
        free -= clipped
    return ideal


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCost:
    """Compute time of one rank as a function of its samples b: fixed_s + per_sample_s · b."""

    fixed_s: float
    per_sample_s: float

    def num_by(self, moment_s: float) -> int:
        """Samples done by then; below zero before it begins."""
        if self.per_sample_s <= 0:
            return _ALL if self.fixed_s <= moment_s else 0
        number = math.floor((moment_s - self.fixed_s) / self.per_sample_s)
        return number - (self.fixed_s + self.per_sample_s * number > moment_s)


def balanced(costs: Sequence[RankCost], total: int, limits: Bounds) -> tuple[int, ...]:
    """The split with the smallest slowest-rank time: each next sample goes where it finishes earliest."""
    limits.check(total)
    samples = _early_samples(costs, total, limits)

    def next_finish(rank: int) -> float:
        return costs[rank].fixed_s + costs[rank].per_sample_s * (samples[rank] + 1)

    queue = [(next_finish(rank), rank) for rank in range(len(costs)) if samples[rank] < limits.caps[rank]]
    heapq.heapify(queue)
    for _ in range(total - sum(samples)):
        _, rank = heapq.heappop(queue)
        samples[rank] += 1
        if samples[rank] < limits.caps[rank]:
            heapq.heappush(queue, (next_finish(rank), rank))
    return tuple(samples)


def _early_samples(costs: Sequence[RankCost], total: int, limits: Bounds) -> list[int]:
    """All but a few samples of a balanced split: those that finish by some time, found by bisection."""
    samples = list(limits.minimums)
    low_s, high_s = 0.0, max(cost.fixed_s + cost.per_sample_s * total for cost in costs)
    for _ in range(_HALVINGS if math.isfinite(high_s) else 0):
        if total - sum(samples) <= len(costs):
            break
        by_s = (low_s + high_s) / 2
        tried = [
            min(max(cost.num_by(by_s), least), most)
            for cost, least, most in zip(costs, limits.minimums, limits.caps, strict=True)
        ]
        if sum(tried) <= total:
            low_s, samples = by_s, tried
        else:
            high_s = by_s
    return samples
