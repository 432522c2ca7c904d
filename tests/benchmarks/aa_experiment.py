"""How often does `compare` raise a false alarm, and how often does it miss a slow-down of 5 %?

    python -m tests.benchmarks.aa_experiment [FOLDER [docs/measuring.md]]

Comparisons are drawn from the kept runs: interleaved rounds within a job (what `nox -s compare` measures), drawn from all
jobs or neighbouring ones of one job; and sides from different jobs (what `autotune compare` reads). Each is evaluated by
the code of the commands: with two equal sides; with the times of one multiplied by 1.05; and with runs on a cluster that
really is 5 % slower. Pairs drawn from the same runs are not independent: the bounds are about the drawing.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import comb, exp, lgamma, log
from pathlib import Path
from statistics import median

from autotune.results.judge.compare import NO_DIFFERENCE, WORSE, Change, paired_change, unpaired_change
from autotune.results.judge.series import Runs, Series
from autotune.results.store.environment import describe_environment
from autotune.results.store.store import read_json, write_json
from tests.benchmarks.aa_runs import CONDITIONS, PUBLISHED
from tests.benchmarks.published_table import put_between

PAIRS = 2000
SLOWER = 1.05
ROUNDS = (10, 12, 16, 20)
BEGIN, END = "<!-- experiment -->", "<!-- /experiment -->"


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """The three runs that were made side by side."""

    job: int
    same_s: tuple[float, float]
    slower_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """What one comparison gets to see."""

    before_s: tuple[float, ...]
    after_s: tuple[float, ...]
    slower_s: tuple[float, ...]
    """Of runs that really are slower, instead of `after_s`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The verdicts of all comparisons that were drawn alike."""

    condition: str
    drawn: str
    num_rounds: int
    num_pairs: int
    false_alarms: int
    """Equal sides called "worse"."""
    false_differences: int
    """Equal sides called "worse" or "better"."""
    false_share: float
    false_share_upper: float
    """Upper end of the 95 % Clopper-Pearson interval of `false_share`, which is of differences in either direction."""
    found_injected: float
    """Share called "worse" when every time of one side is multiplied by 1.05."""
    found_real: float
    """Share called "worse" when one side really ran on a cluster 5 % slower."""
    detectable: float
    """Median of the smallest slow-down that the comparisons of equal sides say they would find with 80 % power."""
    found_at_detectable: float
    """Share found when each comparison is slowed down by what it itself said."""


Draw = Callable[[Sequence[Round], int, random.Random], Drawn]


def rounds_of(runs: Runs) -> list[Round]:
    """The kept runs by round; a run counts with its steady step."""
    times = {(run.job, run.round_number, run.series): run.step_s for run in runs.runs}
    keys = sorted({(run.job, run.round_number) for run in runs.runs})
    return [
        Round(job=job, same_s=(times[job, n, "a"], times[job, n, "b"]), slower_s=times[job, n, "slower"])
        for job, n in keys
    ]


def interleaved(rounds: Sequence[Round], count: int, generator: random.Random) -> Drawn:
    """Rounds of any job; which of the two equal runs is "before" is drawn too."""
    return _paired(generator.sample(list(rounds), count), generator)


def in_a_row(rounds: Sequence[Round], count: int, generator: random.Random) -> Drawn:
    """Neighbouring rounds of one job, with whatever they have in common."""
    starts = [i for i in range(len(rounds) - count + 1) if rounds[i].job == rounds[i + count - 1].job]
    start = generator.choice(starts)
    return _paired(rounds[start : start + count], generator)


def different_jobs(rounds: Sequence[Round], count: int, generator: random.Random) -> Drawn:
    """One side from one job, the other from another."""
    before, after = generator.sample(sorted({one.job for one in rounds}), 2)
    old = generator.sample([one for one in rounds if one.job == before], count)
    new = generator.sample([one for one in rounds if one.job == after], count)
    return Drawn(
        before_s=tuple(generator.choice(one.same_s) for one in old),
        after_s=tuple(generator.choice(one.same_s) for one in new),
        slower_s=tuple(one.slower_s for one in new),
    )


def _paired(chosen: Sequence[Round], generator: random.Random) -> Drawn:
    flipped = [one.same_s[:: generator.choice((1, -1))] for one in chosen]
    before_s, after_s = zip(*flipped, strict=True)
    return Drawn(before_s=before_s, after_s=after_s, slower_s=tuple(one.slower_s for one in chosen))


DRAWS: dict[str, tuple[Draw, Callable[[Series, Series], Change]]] = {
    "interleaved": (interleaved, paired_change),
    "interleaved, neighbouring rounds": (in_a_row, paired_change),
    "different jobs": (different_jobs, unpaired_change),
}


def outcome(condition: str, drawn: str, rounds: Sequence[Round], num_rounds: int, num_pairs: int = PAIRS) -> Outcome:
    """Draw that many comparisons and judge each four times."""
    draw, judge = DRAWS[drawn]
    generator = random.Random(f"{condition} {drawn} {num_rounds}")
    pairs = [draw(rounds, num_rounds, generator) for _ in range(num_pairs)]
    change = partial(_judged, judge)
    equal = [change(pair.before_s, pair.after_s) for pair in pairs]
    alarms = sum(found.verdict == WORSE for found in equal)
    differences = sum(found.verdict != NO_DIFFERENCE for found in equal)
    return Outcome(
        condition=condition,
        drawn=drawn,
        num_rounds=num_rounds,
        num_pairs=num_pairs,
        false_alarms=alarms,
        false_differences=differences,
        false_share=differences / num_pairs,
        false_share_upper=upper_bound(differences, num_pairs),
        found_injected=_found(change(p.before_s, p.after_s, SLOWER) for p in pairs),
        found_real=_found(change(p.before_s, p.slower_s) for p in pairs),
        detectable=median(found.detectable or 0.0 for found in equal),
        found_at_detectable=_found(
            change(p.before_s, p.after_s, 1 + (e.detectable or 0.0)) for p, e in zip(pairs, equal, strict=True)
        ),
    )


def _judged(
    judge: Callable[[Series, Series], Change],
    before_s: tuple[float, ...],
    after_s: tuple[float, ...],
    factor: float = 1.0,
) -> Change:
    slowed = tuple(step * factor for step in after_s)
    return judge(Series(name="steps", rounds_s=before_s), Series(name="steps", rounds_s=slowed))


def _found(changes: Iterator[Change]) -> float:
    verdicts = [change.verdict == WORSE for change in changes]
    return sum(verdicts) / len(verdicts)


def upper_bound(count: int, total: int, confidence: float = 0.95) -> float:
    """Upper end of the Clopper-Pearson interval: the p for which so few or fewer are only just likely enough."""
    if count == total:
        return 1.0
    low, high = count / total, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(count, total, middle) > (1 - confidence) / 2 else (low, middle)
    return high


def _at_most(count: int, total: int, p: float) -> float:
    """P(X <= count) of a binomial."""
    if total < 1000:
        return sum(comb(total, k) * p**k * (1 - p) ** (total - k) for k in range(count + 1))
    fixed = lgamma(total + 1)
    terms = (
        fixed - lgamma(k + 1) - lgamma(total - k + 1) + k * log(p) + (total - k) * log(1 - p) for k in range(count + 1)
    )
    return sum(map(exp, terms))


def experiment(sets: dict[str, Runs]) -> list[Outcome]:
    """Every set, every draw, every number of rounds."""
    return [
        outcome(condition, drawn, rounds_of(runs), num_rounds)
        for condition, runs in sets.items()
        for drawn in DRAWS
        for num_rounds in ROUNDS
    ]


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes for the page."""
    head = (
        "| machine | drawn | rounds | pairs | equal sides called different (worse) | upper 95 % bound | 5 % injected: found "
        "| really 5 % slower: found | says it would find | found of that |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *map(_row, outcomes)])


def _row(one: Outcome) -> str:
    cells = [
        one.condition,
        one.drawn,
        str(one.num_rounds),
        str(one.num_pairs),
        f"{one.false_share:.2%} ({one.false_alarms / one.num_pairs:.2%})",
        f"{one.false_share_upper:.2%}",
        f"{one.found_injected:.1%}",
        f"{one.found_real:.1%}",
        f"{one.detectable:.2%}",
        f"{one.found_at_detectable:.0%}",
    ]
    return f"| {' | '.join(cells)} |"


def main(folder: Path = PUBLISHED, page: Path | None = None) -> None:
    sets = {condition: read_json(Runs, folder / f"runs-{condition}.json") for condition in CONDITIONS}
    outcomes = experiment(sets)
    made_by = {"command": "nox -s aa", "label": "emulated", "environment": describe_environment()}
    write_json(folder / "experiment.json", made_by | {"outcomes": outcomes})
    if page is not None:
        put_between(page, BEGIN, END, table(outcomes))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
