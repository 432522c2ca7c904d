"""Neighbours of a shape: one boundary, device, group, stage, share, or number of micro-batches away.

Moves come in pairs that undo each other, so that every shape of the space can be reached from every other. Devices of one kind on
one host are alike: of those, the last one moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autotune.placement.stage_seeds import DEGREES
from autotune.placement.stage_shape import Group, Shape, Stage
from autotune.workloads.plan import ROUND_ROBIN, SPLIT

_STEPS = (1, 2, 4)
_SCHEDULES = ("1f1b", "zero-bubble")
Parts = tuple[tuple[Group, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What moves depend on besides the shape."""

    num_places: int
    island_of: tuple[int, ...]
    """Of each rank: alike devices of one host."""
    counts: tuple[int, ...]
    """Numbers of micro-batches, ascending."""
    most_degree: int
    may_deal: bool
    """Whether replicas may take whole micro-batches."""


def moves(shape: Shape, scene: Scene) -> Iterator[Shape]:
    """Shapes that need new shares, except where only shares move (`share_moves`)."""
    yield from _boundaries(shape, scene)
    yield from _counts(shape, scene)
    yield from (replace(shape, schedule=one) for one in _SCHEDULES if one != shape.schedule and len(shape.stages) > 1)
    groups = tuple(stage.groups for stage in shape.stages)
    for changed in dict.fromkeys((*_placed(groups, scene), *_joined(groups, scene), *_parted(groups, scene))):
        yield _with_groups(shape, changed)
    yield from _merged(shape)
    yield from _divided(shape, scene)


def share_moves(shape: Shape) -> Iterator[Shape]:
    """A sample of each micro-batch, or a whole micro-batch, from one replica of a stage to another."""
    for number, stage in enumerate(shape.stages):
        for source in range(len(stage.shares)):
            for target in range(len(stage.shares)):
                if source != target and stage.shares[source] > 1:
                    shares = list(stage.shares)
                    shares[source], shares[target] = shares[source] - 1, shares[target] + 1
                    yield _at(shape, number, replace(stage, shares=tuple(shares)))


def _at(shape: Shape, number: int, stage: Stage) -> Shape:
    return replace(shape, stages=(*shape.stages[:number], stage, *shape.stages[number + 1 :]))


def _boundaries(shape: Shape, scene: Scene) -> Iterator[Shape]:
    ends = (*shape.firsts[1:], scene.num_places)
    for number in range(1, len(shape.stages)):
        stage = shape.stages[number]
        for step in (*_STEPS, *(-step for step in _STEPS)):
            if shape.firsts[number - 1] < stage.first + step < ends[number]:
                yield _at(shape, number, replace(stage, first=stage.first + step))


def _counts(shape: Shape, scene: Scene) -> Iterator[Shape]:
    at = scene.counts.index(shape.micro_batches)
    for near in (at - 2, at - 1, at + 1, at + 2):
        if 0 <= near < len(scene.counts):
            yield replace(shape, micro_batches=scene.counts[near])
    if scene.may_deal:
        yield replace(shape, sharing=ROUND_ROBIN if shape.sharing == SPLIT else SPLIT)


def _with_groups(shape: Shape, groups: Parts) -> Shape:
    """Stages without any replica are gone; the one before takes their ops."""
    kept = [
        Stage(first=stage.first, groups=own, shares=(1,) * len(own))
        for stage, own in zip(shape.stages, groups, strict=True)
        if own
    ]
    kept[0] = replace(kept[0], first=0)
    return replace(shape, stages=tuple(kept))


def _islands(groups: Sequence[Group], scene: Scene) -> dict[tuple[int, int], Group]:
    """The last group of each island and size."""
    return {(scene.island_of[group[0]], len(group)): group for group in groups}


def _idle(groups: Parts, scene: Scene) -> dict[int, list[int]]:
    """By island."""
    used = {rank for stage in groups for group in stage for rank in group}
    found: dict[int, list[int]] = {}
    for rank, island in enumerate(scene.island_of):
        if rank not in used:
            found.setdefault(island, []).append(rank)
    return found


def _replaced(groups: Parts, changes: dict[int, tuple[Group | None, Group | None]]) -> Parts:
    """Per stage: without the first group, with the second."""
    found = []
    for number, own in enumerate(groups):
        gone, new = changes.get(number, (None, None))
        kept = [group for group in own if group != gone]
        found.append(tuple(sorted([*kept, *([new] if new is not None else [])])))
    return tuple(found)


def _placed(groups: Parts, scene: Scene) -> Iterator[Parts]:
    """A replica in another stage, out, or in; two replicas exchanged; one replaced by one that was out."""
    idle = _idle(groups, scene)
    for number, own in enumerate(groups):
        for group in _islands(own, scene).values():
            yield from _elsewhere(groups, number, group, scene)
            if sum(map(len, groups)) > 1:
                yield _replaced(groups, {number: (group, None)})
            for ranks in idle.values():
                yield from (_replaced(groups, {number: (group, one)}) for one in [tuple(ranks[: len(group)])] if one)
        for ranks in idle.values():
            for size in (size for size in DEGREES if size <= min(scene.most_degree, len(ranks))):
                yield _replaced(groups, {number: (None, tuple(ranks[:size]))})


def _elsewhere(groups: Parts, number: int, group: Group, scene: Scene) -> Iterator[Parts]:
    """A replica of a stage in each other one, or exchanged for an unlike one of a later stage."""
    for other, own in enumerate(groups):
        if other != number:
            yield _replaced(groups, {number: (group, None), other: (None, group)})
        for mate in _islands(own, scene).values() if other > number else ():
            if (scene.island_of[mate[0]], len(mate)) != (scene.island_of[group[0]], len(group)):
                yield _replaced(groups, {number: (group, mate), other: (mate, group)})


def _joined(groups: Parts, scene: Scene) -> Iterator[Parts]:
    """Two replicas of an island as one that shares every op; all pairs of a stage at once."""
    for number, own in enumerate(groups):
        pairs = _pairs(own, scene)
        firsts = {(scene.island_of[a[0]], len(a)): (a, b) for a, b in reversed(pairs)}
        chosen = [[pair] for pair in firsts.values()]
        for joined in [*chosen, pairs] if len(pairs) > 1 else chosen:
            gone = {group for pair in joined for group in pair}
            kept = [group for group in own if group not in gone]
            yield _changed(groups, number, [*kept, *(a + b for a, b in joined)])


def _pairs(own: Sequence[Group], scene: Scene) -> list[tuple[Group, Group]]:
    """Replicas of one island and size, two by two."""
    alike: dict[tuple[int, int], list[Group]] = {}
    for group in own:
        if 2 * len(group) <= scene.most_degree:
            alike.setdefault((scene.island_of[group[0]], len(group)), []).append(group)
    return [(several[at], several[at + 1]) for several in alike.values() for at in range(0, len(several) - 1, 2)]


def _parted(groups: Parts, scene: Scene) -> Iterator[Parts]:
    """A replica of several ranks as two; all of a stage at once."""
    for number, own in enumerate(groups):
        several = [group for group in own if len(group) > 1]
        lasts = list(_islands(several, scene).values())
        chosen = [[group] for group in lasts]
        for parted in [*chosen, several] if len(several) > 1 else chosen:
            kept = [group for group in own if group not in parted]
            yield _changed(groups, number, [*kept, *(half for group in parted for half in _halves(group))])


def _halves(group: Group) -> tuple[Group, Group]:
    return group[: len(group) // 2], group[len(group) // 2 :]


def _changed(groups: Parts, number: int, own: Sequence[Group]) -> Parts:
    return (*groups[:number], tuple(sorted(own)), *groups[number + 1 :])


def _merged(shape: Shape) -> Iterator[Shape]:
    """Two neighbouring stages as one on the devices of both."""
    for number in range(len(shape.stages) - 1):
        a, b = shape.stages[number : number + 2]
        own = tuple(sorted((*a.groups, *b.groups)))
        both = Stage(first=a.first, groups=own, shares=(1,) * len(own))
        yield replace(shape, stages=(*shape.stages[:number], both, *shape.stages[number + 2 :]))


def _divided(shape: Shape, scene: Scene) -> Iterator[Shape]:
    """A stage as two, with a part of its replicas each, or the second on a device that was out."""
    ends = (*shape.firsts[1:], scene.num_places)
    idle = _idle(tuple(stage.groups for stage in shape.stages), scene)
    for number, (stage, end) in enumerate(zip(shape.stages, ends, strict=True)):
        if end - stage.first < 2:
            continue
        parts = [*_two_parts(stage.groups, scene), *((stage.groups, ((ranks[0],),)) for ranks in idle.values())]
        middle = (stage.first + end) // 2
        for one, other in dict.fromkeys((pair for a, b in parts for pair in ((a, b), (b, a)))):
            halves = (
                Stage(first=stage.first, groups=one, shares=(1,) * len(one)),
                Stage(first=middle, groups=other, shares=(1,) * len(other)),
            )
            yield replace(shape, stages=(*shape.stages[:number], *halves, *shape.stages[number + 1 :]))


def _two_parts(groups: tuple[Group, ...], scene: Scene) -> Iterator[tuple[tuple[Group, ...], tuple[Group, ...]]]:
    """One island and the others; half of each island and the rest; one replica of an island and the others."""
    islands: dict[int, list[Group]] = {}
    for group in groups:
        islands.setdefault(scene.island_of[group[0]], []).append(group)
    choices = [list(members) for members in islands.values()] if len(islands) > 1 else []
    choices.append([group for members in islands.values() for group in members[: len(members) // 2]])
    choices += [members[-1:] for members in islands.values()]
    for chosen in choices:
        rest = tuple(group for group in groups if group not in chosen)
        if chosen and rest:
            yield tuple(chosen), rest
