"""Makes a loop that fails smaller, as long as it fails in the same way (delta debugging: Zeller and Hildebrandt, 2002)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.loops.description import Chosen, Loop

PLAIN_SGD = Chosen(name="SGD", options={"arguments": "lr=0.1", "extra": ""})
_PLAIN_PLAN = {"reducer": "bucketed", "transport": "gloo", "collective": "ring"}
_OPTIONAL = ("factors", "shares", "priority", "partition_bytes", "credit_bytes", "bucket_bytes")


def shrink(loop: Loop, first_failing: Callable[[list[Loop]], Loop | None], *, rounds: int = 8) -> Loop:
    """The smallest loop found that still fails. `first_failing` is called once per round."""
    for _ in range(rounds):
        smaller = first_failing(list(candidates(loop)))
        if smaller is None:
            return loop
        loop = smaller
    return loop


def candidates(loop: Loop) -> Iterator[Loop]:
    """Smaller loops, those that lose most first."""
    for name in ("habits", "blocks"):
        entries = getattr(loop, name)
        if len(entries) > 1:
            yield replace(loop, **{name: ()})
        for part in _halves(len(entries)):
            yield replace(loop, **{name: tuple(entry for place, entry in enumerate(entries) if place not in part)})
    if loop.optimizer != PLAIN_SGD:
        yield replace(loop, optimizer=PLAIN_SGD)
    if loop.plan != _PLAIN_PLAN:
        yield replace(loop, plan=_PLAIN_PLAN)
    yield from _simpler_plans(loop)
    if loop.epochs > 1:
        yield replace(loop, epochs=1)


def _halves(count: int) -> Iterator[set[int]]:
    """Both halves, then quarters, down to single entries."""
    size = (count + 1) // 2
    while size >= 1:
        for start in range(0, count, size):
            yield set(range(start, min(start + size, count)))
        size = size // 2 if size > 1 else 0


def _simpler_plans(loop: Loop) -> Iterator[Loop]:
    plan = loop.plan
    if plan["collective"] != "ring":
        bare = {name: value for name, value in plan.items() if name not in {"servers", "shares"}}
        yield replace(loop, plan=bare | {"collective": "ring"})
    if plan["transport"] != "gloo":
        yield replace(loop, plan=plan | {"transport": "gloo"})
    if plan.get("crosses_steps"):
        yield replace(loop, plan=plan | {"crosses_steps": False})
    for name in _OPTIONAL:
        if name in plan:
            yield replace(loop, plan={key: value for key, value in plan.items() if key != name})
