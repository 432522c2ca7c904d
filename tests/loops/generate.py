"""A loop from a seed: the same seed gives the same loop."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from tests.loops.blocks import BLOCKS, NORMS
from tests.loops.description import Chosen, Loop
from tests.loops.habits import HABITS
from tests.loops.optimizers import OPTIMIZERS, SPARSE_OPTIMIZERS
from tests.loops.plans import draw_plan, draw_split

_NEEDS_ALL_STATISTICS = ("resplit", "rollback", "resume")
"""Data sets but the first keep their split; in the reference only rank 0's statistics are in what is saved and loaded."""


def draw_loop(seed: int, ranks: int) -> Loop:
    """Everything in it is drawn independently; what conflicts with what is already drawn is left out."""
    rng = random.Random(seed * 8 + ranks)
    optimizer = _draw_optimizer(rng)
    taken = _Taken([optimizer.name, *(["fused"] if "fused" in optimizer.options["extra"] else [])])
    taken.forbid(OPTIMIZERS[optimizer.name].forbids)
    blocks = _draw_blocks(rng, taken)
    habits = _draw_habits(rng, taken)
    has_norms = any(block.name in NORMS for block in blocks)
    if not has_norms and rng.random() < 0.9:
        habits = tuple(habit for habit in habits if habit.name != "sync_norm")
    is_local = has_norms and "sync_norm" not in taken.names
    if is_local and "evaluate" in taken.names:  # which uses each rank's own statistics
        habits = tuple(habit for habit in habits if habit.name not in _NEEDS_ALL_STATISTICS)
    lowest = 2 if is_local else 1
    batch = rng.randint(max(4, lowest * ranks), 24)
    more = next((habit.options["more"] for habit in habits if habit.name == "short_batch"), 0)
    return Loop(
        seed=seed,
        samples=tuple(draw_split(rng, batch, ranks, lowest=lowest)),
        num_data=batch * rng.randint(2, 4) + (0 if is_local else max(more, 2 * has_norms)),
        epochs=rng.randint(2, 3),
        blocks=blocks,
        optimizer=optimizer,
        habits=habits,
        plan=draw_plan(rng, ranks, taken.names),
    )


class _Taken:
    """What a loop has, and what it cannot have any more."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names, self._forbidden = set(names), set[str]()

    def forbid(self, names: Iterable[str]) -> None:
        self._forbidden |= set(names)

    def take(self, name: str, forbids: Iterable[str]) -> bool:
        """If nothing is against it."""
        if name in self._forbidden or not self.names.isdisjoint(forbids):
            return False
        self.names.add(name)
        self.forbid(forbids)
        return True


def _draw_optimizer(rng: random.Random) -> Chosen:
    name = _weighted(rng, {name: kind.share for name, kind in OPTIMIZERS.items()})
    kind = OPTIMIZERS[name]
    options = {"arguments": rng.choice(kind.variants), "extra": rng.choice(kind.extras)}
    return Chosen(name=name, options=options)


def _draw_blocks(rng: random.Random, taken: _Taken) -> tuple[Chosen, ...]:
    chosen = []
    for _ in range(rng.randint(1, 4)):
        name = _weighted(rng, {name: block.share for name, block in BLOCKS.items()})
        options = _draw_options(rng, BLOCKS[name].options)
        if name == "sparse":
            options["optimizer"] = rng.choice(SPARSE_OPTIMIZERS)
        if name in taken.names or taken.take(name, BLOCKS[name].forbids):
            chosen.append(Chosen(name=name, options=options))
    return tuple(chosen)


def _draw_habits(rng: random.Random, taken: _Taken) -> tuple[Chosen, ...]:
    """In an order of their own, so that an early entry of the table does not win every conflict."""
    wanted = [(name, _draw_options(rng, habit.options)) for name, habit in HABITS.items() if rng.random() < habit.share]
    order = list(wanted)
    rng.shuffle(order)
    kept = {name for name, _ in order if taken.take(name, HABITS[name].forbids)}
    return tuple(Chosen(name=name, options=options) for name, options in wanted if name in kept)


def _draw_options(rng: random.Random, table: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {name: rng.choice(choices) for name, choices in table.items()}


def _weighted(rng: random.Random, shares: dict[str, float]) -> str:
    return rng.choices(list(shares), weights=list(shares.values()))[0]
