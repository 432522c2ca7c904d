"""Search on a prediction alone: every choice of the discrete knobs, then samples moved between ranks while it pays.

Predictions are cheap, so nothing is drawn at random: all buckets, codecs, transports and collectives with the split that
the devices' costs call for, over all ranks and over the sets of ranks worth it; from the best of each, moves of a few samples
from one rank to another, and all knobs again for the split that is left, until no move helps. In a large cluster samples
move between kinds of ranks. Optuna on the same prediction is the control (`--method tpe`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

from autotune.search.methods import Judge, PredictedSearch
from autotune.space.space import Space
from autotune.workloads.plan import Plan
from autotune.workloads.rank_kinds import members

_STARTS = 3
_MOVES = (8, 4, 2, 1)
_MOST_ENDS = 8
"""Kinds of ranks that give samples, and that take them, where there are many: those that are the furthest from balance."""


def knob_plans(space: Space, samples: tuple[int, ...]) -> list[Plan]:
    """Every choice of the knobs that are not the split, each plan once; and every plan with stages, which have no split."""
    return list(dict.fromkeys([*(space.with_knobs(samples, knobs) for knobs in space.grid()), *space.staged.plans]))


def moved(plan: Plan, space: Space) -> list[Plan]:
    """The plan with a few samples moved from one rank, or one kind of ranks, to another; none of a plan with stages. Ranks that
    are left out stay so.
    """
    if plan.is_placed:
        return []
    splits = dict.fromkeys(_splits(plan.batch.samples, space))
    return [replace(plan, batch=replace(plan.batch, samples=samples)) for samples in splits]


def _splits(samples: tuple[int, ...], space: Space) -> Iterator[tuple[int, ...]]:
    kinds = space.rank_kinds or range(len(samples))
    used = [[rank for rank in ranks if samples[rank]] for ranks in members(kinds)]
    ends = _ends([ranks for ranks in used if ranks], samples, space)
    for step in _MOVES:
        for source, target in ends:
            one = _shifted(samples, source, target, step, space)
            each = _shifted(samples, source, target, step * max(len(source), len(target)), space)
            yield from (split for split in (one, each) if split is not None)


def _ends(
    kinds: Sequence[list[int]], samples: tuple[int, ...], space: Space
) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Pairs of kinds. Of many, only those that have most and fewest samples for their speed."""

    def taken(ranks: Sequence[int]) -> float:
        return sum(samples[rank] for rank in ranks) / sum(space.reference[rank] for rank in ranks)

    if len(kinds) <= 2 * _MOST_ENDS:
        return list(permutations(kinds, 2))
    ordered = sorted(kinds, key=taken)
    return [(source, target) for source in ordered[-_MOST_ENDS:] for target in ordered[:_MOST_ENDS]]


def _shifted(
    samples: tuple[int, ...], source: Sequence[int], target: Sequence[int], count: int, space: Space
) -> tuple[int, ...] | None:
    """`count` samples moved from the ranks of `source` to those of `target`, as evenly as can be; None where bounds forbid it."""
    changed, limits = list(samples), space.limits
    for ranks, sign in ((source, -1), (target, 1)):
        ordered = sorted(ranks, key=lambda rank: (sign * changed[rank], rank))
        whole, rest = divmod(count, len(ordered))
        for place, rank in enumerate(ordered):
            changed[rank] += sign * (whole + (place < rest))
            if not limits.minimums[rank] <= changed[rank] <= limits.caps[rank]:
                return None
    return tuple(changed)


def descend(
    space: Space,
    start: tuple[int, ...],
    judge: Judge,
    *,
    most: int = 20_000,
    others: Sequence[tuple[int, ...]] = (),
) -> list[tuple[float, Plan]]:
    """All plans that were judged, the best first. `others`: splits to start from besides, such as those that leave ranks out."""
    seen: dict[Plan, tuple[float, Plan]] = {}

    def best_of(plans: Sequence[Plan]) -> list[tuple[float, Plan]]:
        new = []
        for plan in plans:
            if plan not in seen and len(seen) < most:
                seen[plan] = (judge(plan), plan)
            if plan in seen:
                new.append(seen[plan])
        return sorted(new, key=lambda entry: entry[0])

    of_splits = [best_of(knob_plans(space, split)) for split in (start, *others)]
    best_of_each = sorted((entries[0] for entries in of_splits[1:] if entries), key=lambda entry: entry[0])
    for entry in [*of_splits[0][:_STARTS], *best_of_each]:
        best = entry
        while (near := best_of(moved(best[1], space))) and near[0][0] < best[0]:
            best = near[0]
        if best[1].pipeline is None:
            best_of(knob_plans(space, best[1].batch.samples))
    return sorted(seen.values(), key=lambda entry: entry[0])


def search(asked: PredictedSearch) -> list[tuple[float, Plan]]:
    """As `--method descent`."""
    return descend(asked.space, asked.start, asked.judge, most=asked.evaluations, others=asked.others)
