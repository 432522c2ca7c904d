"""What the measured trials say about each rank's speed, and the split that follows.

DBS (arXiv 2007.11831) moves samples in proportion to speed once per epoch. Here every finished trial adds a point
(samples, compute time) per rank, a line a_i + c_i·b through them is fitted, and the split with the smallest slowest-rank
time under those lines is proposed to the search. Compute time excludes time blocked in communication.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median

from autotune.results.judge.selection import default_record
from autotune.results.store.record import RankResult, TrialRecord
from autotune.search.problem import Problem
from autotune.simulate.limit import stated_sample_s
from autotune.space.space import Space
from autotune.workloads.split import RankCost, balanced, even

_SPLIT_NOISE = 0.03


def fit_costs(records: Sequence[TrialRecord]) -> list[RankCost] | None:
    """The cost line of every rank, or None before any trial has finished. A stage of a pipeline tells nothing of the whole model."""
    finished = [record for record in records if record.step_s is not None and not record.plan.is_placed]
    if not finished:
        return None
    num_ranks = len(finished[0].ranks)
    results = [[record.ranks[rank] for record in finished] for rank in range(num_ranks)]
    lines = [fit_line(of_rank) if any(one.samples for one in of_rank) else None for of_rank in results]
    slowest = max((line.per_sample_s for line in lines if line is not None), default=1.0)
    unknown = RankCost(fixed_s=0.0, per_sample_s=slowest)  # left out in every trial so far
    return [line or unknown for line in lines]


def fit_line(results: Sequence[RankResult]) -> RankCost:
    """Least squares through the median time of each batch size seen, with neither a nor c below zero."""
    times: dict[int, list[float]] = defaultdict(list)
    for result in results:
        if result.samples > 0:
            times[result.samples].append(result.compute_s)
    points = [(samples, median(seconds)) for samples, seconds in times.items()]
    if not points:
        return RankCost(fixed_s=0.0, per_sample_s=1.0)
    mean_b, mean_t = fmean(b for b, _ in points), fmean(t for _, t in points)
    spread = sum((b - mean_b) ** 2 for b, _ in points)
    slope = sum((b - mean_b) * (t - mean_t) for b, t in points) / spread if spread else 0.0
    fixed_s = mean_t - slope * mean_b
    if slope <= 0 or fixed_s < 0:
        return RankCost(fixed_s=0.0, per_sample_s=mean_t / mean_b)
    return RankCost(fixed_s=fixed_s, per_sample_s=slope)


def relative_speeds(costs: Sequence[RankCost], samples: Sequence[int]) -> tuple[float, ...]:
    """Samples per second of each rank near the given split, the fastest being 1."""
    speeds = [
        max(b, 1) / (cost.fixed_s + cost.per_sample_s * max(b, 1)) for cost, b in zip(costs, samples, strict=True)
    ]
    return tuple(speed / max(speeds) for speed in speeds)


def reference_speeds(problem: Problem, records: Sequence[TrialRecord]) -> tuple[float, ...]:
    """How fast each rank is: as the default showed; if that could not run, as the cluster file states; else all alike."""
    default = default_record(records)
    if default is not None and (costs := fit_costs([default])) is not None:
        return relative_speeds(costs, default.plan.batch.samples)
    if problem.cluster.is_emulated and problem.graph is not None:
        return tuple(1 / seconds for seconds in stated_sample_s(problem.graph, problem.cluster))
    return (1.0,) * len(problem.cluster.devices)


def worthwhile_split(costs: Sequence[RankCost], space: Space) -> tuple[int, ...]:
    """The split with the smallest slowest-rank time or, where that is within noise of it, the even one: on equal devices
    measured speeds differ by chance, and following them would unbalance what was balanced.
    """
    total, limits = space.global_batch, space.limits
    plain, best = even(total, limits), balanced(costs, total, limits)

    def slowest_s(samples: tuple[int, ...]) -> float:
        return max(cost.fixed_s + cost.per_sample_s * count for cost, count in zip(costs, samples, strict=True))

    return plain if slowest_s(plain) <= slowest_s(best) * (1 + _SPLIT_NOISE) else best
