"""What the measured trials say about each rank's speed, the split that follows, and which knobs to try first.

DBS (arXiv 2007.11831) moves samples in proportion to speed once per epoch. Here every finished trial adds a point
(samples, compute time) per rank, a line a_i + c_i·b through them is fitted, and the split with the smallest slowest-rank
time under those lines is proposed to the search. Compute time excludes time blocked in communication.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from autotune.results.store.record import RankResult, TrialRecord
from autotune.space.space import MIN_BUCKET_LOG2, Space
from autotune.workloads.plan import Plan
from autotune.workloads.split import RankCost


def fit_costs(records: Sequence[TrialRecord]) -> list[RankCost] | None:
    """The cost line of every rank, or None before any trial has finished. A stage of a pipeline tells nothing of the whole model."""
    finished = [record for record in records if record.step_s is not None and record.plan.pipeline is None]
    if not finished:
        return None
    num_ranks = len(finished[0].ranks)
    return [fit_line([record.ranks[rank] for record in finished]) for rank in range(num_ranks)]


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


def openings(space: Space) -> list[dict[str, Any]]:
    """What to try first: the narrowest codec allowed, middling buckets, every transport once; all else the plainest there is,
    since what is left to chance may need a transport of its own.
    """
    plainest = {knob.name: knob.choices[0] for knob in space.knobs() if knob.choices}
    codec = "fp16" if "fp16" in space.codecs else space.codecs[0]
    middle, small = min(20, space.max_bucket_log2), min(18, space.max_bucket_log2)
    first, *others = space.transports
    points = [(middle, first), *((small, transport) for transport in others), (small, first)]
    return [plainest | {"bucket_log2": bucket, "codec": codec, "transport": transport} for bucket, transport in points]


def neighbours(plan: Plan, space: Space) -> list[dict[str, Any]]:
    """The knobs of a plan with one of them a step away: half and double the bucket, then the other choices."""
    here = {name: value for name, value in space.point(plan).items() if not name.startswith("tilt.")}
    bucket_log2 = here["bucket_log2"] = min(max(here["bucket_log2"], MIN_BUCKET_LOG2), space.max_bucket_log2)
    near = [here | {"bucket_log2": bucket_log2 + step} for step in (-1, 1, -2, 2)]
    near += [
        here | {knob.name: choice} for knob in space.knobs() for choice in knob.choices if choice != here[knob.name]
    ]
    return [here, *(knobs for knobs in near if MIN_BUCKET_LOG2 <= knobs["bucket_log2"] <= space.max_bucket_log2)]
