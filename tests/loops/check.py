"""Draws loops, runs them in launches of many, judges them, and shrinks those that fail."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.loops.description import Loop
from tests.loops.generate import draw_loop
from tests.loops.runs import run_all
from tests.loops.shrink import shrink
from tests.loops.verdict import Verdict, judge

PER_LAUNCH = 100
"""Loops that share the start of an MPI job."""


def drawn(first_seed: int, count: int, ranks: Sequence[int]) -> dict[int, list[Loop]]:
    """`count` loops by number of ranks; successive seeds have successive numbers of ranks."""
    loops = [draw_loop(seed, ranks[seed % len(ranks)]) for seed in range(first_seed, first_seed + count)]
    return {size: [loop for loop in loops if loop.ranks == size] for size in sorted(set(ranks))}


def check(loops: Sequence[Loop], on_verdicts: Callable[[list[Verdict]], None] = lambda _: None) -> list[Verdict]:
    """Verdicts in the order of the loops, all of which have the same number of ranks."""
    verdicts: list[Verdict] = []
    for start in range(0, len(loops), PER_LAUNCH):
        found = check_launch(loops[start : start + PER_LAUNCH])
        on_verdicts(found)
        verdicts += found
    return verdicts


def check_launch(loops: Sequence[Loop], *, restarts: int = 1000) -> list[Verdict]:
    """One launch, or more where loops fail; with fewer restarts, verdicts of the first loops only."""
    with tempfile.TemporaryDirectory(prefix="loops-") as name:
        folder = Path(name) / "runs"
        texts = run_all(folder, loops, restarts=restarts)
        done = max(texts) + 1 if len(texts) > restarts else len(loops)
        return [judge(folder, number, loop, texts.get(number)) for number, loop in enumerate(loops[:done])]


def shrunk(verdict: Verdict, *, rounds: int = 8, launches: int = 25) -> Verdict:
    """The smallest loop found that fails in the same way."""
    smallest, left = verdict, launches

    def first_failing(loops: list[Loop]) -> Loop | None:
        """The job ends at loops that raise, in whatever way, and is started again for the others."""
        nonlocal smallest, left
        while loops and left > 0:
            left -= 1
            found = check_launch(loops, restarts=0)
            if same := next((each for each in found if each.way == verdict.way), None):
                smallest = same
                return same.loop
            loops = loops[len(found) :]
        return None

    shrink(verdict.loop, first_failing, rounds=rounds)
    return smallest
