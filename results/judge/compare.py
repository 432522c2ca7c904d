"""The results of a comparison: how much faster one contender is than another, which is kept for reuse, and what has changed.

Changes are judged at 99.5 %, because a verdict of "worse" is an alarm. Sides that were interleaved in one job are
compared round by round; sides from different jobs by their medians, and then whatever has changed on the machine
between the jobs counts as a change as well.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import median

from autotune.results.judge import stats
from autotune.results.judge.series import Series
from autotune.results.judge.series_file import Side
from autotune.results.judge.stats import (
    ALARM_CONFIDENCE,
    Ratio,
    detectable_slowdown,
    judged,
    speedup,
    unpaired_speedup,
)
from autotune.results.store.record import AGAIN, BEST, DDP_DEFAULT, Comparison, Contender
from autotune.workloads.errors import SpecError

ALARM_ROUNDS = 10
BETTER, WORSE, NO_DIFFERENCE, TOO_FEW = "better", "worse", stats.NO_DIFFERENCE, stats.TOO_FEW
_SHOWN = 5
_WORTH_IT = 1.02
"""What the reset of a knob of the best plan must gain for the comparison to be made anew."""
JOB_DRIFT = 0.05
"""Medians of the same thing in different jobs were up to 4.7 % apart in our experiment (docs/measuring.md)."""
DIFFERENT_JOBS = (
    "Measured in different jobs, which differ by some percent for no reason: a verdict needs more than 5 % on top of noise. "
    "Two revisions are compared in one job by `nox -s compare -- REV_A REV_B`."
)


def ratio(baseline: Contender, contender: Contender) -> Ratio:
    """Speed over the baseline's in the rounds that both finished."""
    shared = min(len(baseline.rounds_s), len(contender.rounds_s))
    return speedup(baseline.rounds_s[:shared], contender.rounds_s[:shared])


def winner(comparison: Comparison) -> Contender:
    """The search's best plan, unless another is faster beyond noise, or it is no faster than the default beyond noise.

    Ablations, with one knob reset to its default, are there to explain, not to win.
    """
    main = [c for c in comparison.contenders if c.rounds_s and not c.reverts and not c.name.endswith(AGAIN)]
    chosen = next((c for c in main if c.name == BEST), main[0])
    for rival in sorted(main, key=lambda c: median(c.rounds_s)):
        if rival is not chosen and ratio(chosen, rival).verdict == "faster":
            chosen = rival
    default = main[0]
    if default.name == DDP_DEFAULT and ratio(default, chosen).verdict != "faster":
        return default
    return chosen


def faster_without(comparison: Comparison) -> Contender | None:
    """The best plan with the knob reset that costs it most, if any costs more than noise and a few percent."""
    best = next((c for c in comparison.contenders if c.name == BEST and c.rounds_s), None)
    variants = [c for c in comparison.contenders if c.reverts and c.rounds_s]
    gains = [(ratio(best, c), c) for c in variants] if best is not None else []
    faster = [c for gain, c in gains if gain.verdict == "faster" and gain.value >= _WORTH_IT]
    return min(faster, key=lambda c: median(c.rounds_s), default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing, before and after."""

    name: str
    group: str
    before_s: float
    after_s: float
    ratio: Ratio
    """Speed after over speed before: below 1 is slower."""
    verdict: str
    """BETTER, WORSE or NO_DIFFERENCE beyond noise; TOO_FEW where no verdict is possible."""
    detectable: float | None
    """The smallest true slow-down that would have been found with 80 % power; None with too few rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """Everything that both sides have measured."""

    before: str
    after: str
    in_one_job: bool
    confidence: float
    rows: tuple[Change, ...]
    notes: tuple[str, ...] = ()

    @property
    def regressions(self) -> tuple[Change, ...]:
        return tuple(row for row in self.rows if row.verdict == WORSE)


def paired_change(before: Series, after: Series) -> Change:
    """Two series whose rounds alternated in one job."""
    return _change(before, after, speedup(before.rounds_s, after.rounds_s, confidence=ALARM_CONFIDENCE, widened=True))


def unpaired_change(before: Series, after: Series) -> Change:
    """Two series from different jobs."""
    found = unpaired_speedup(before.rounds_s, after.rounds_s, confidence=ALARM_CONFIDENCE)
    return _change(before, after, found, drift=JOB_DRIFT)


def _change(before: Series, after: Series, found: Ratio, *, drift: float = 0.0) -> Change:
    enough = found.num_rounds >= ALARM_ROUNDS
    return Change(
        name=after.name,
        group=after.group,
        before_s=median(before.rounds_s),
        after_s=median(after.rounds_s),
        ratio=found,
        verdict=alarm_verdict(found, drift=drift),
        detectable=(1 + detectable_slowdown(found, confidence=ALARM_CONFIDENCE)) * (1 + drift) - 1 if enough else None,
    )


def alarm_verdict(found: Ratio, *, drift: float = 0.0) -> str:
    """What a ratio amounts to where "worse" is an alarm. `drift`: by how much the two sides may differ for no reason."""
    return judged(found, fewest=ALARM_ROUNDS, drift=drift, words=(BETTER, WORSE))


def compare_sides(before: Side, after: Side) -> Changes:
    """Everything of the same name on two sides that were measured in different jobs."""
    pairs = _pairs(before, after)
    return Changes(
        before=before.source,
        after=after.source,
        in_one_job=False,
        confidence=ALARM_CONFIDENCE,
        rows=tuple(unpaired_change(*pair) for pair in pairs),
        notes=tuple(_notes(before, after, pairs)),
    )


def _pairs(before: Side, after: Side) -> list[tuple[Series, Series]]:
    """Same name and same group; where each side has one group only, the name is enough."""
    several = any(len({series.group for series in side.series}) > 1 for side in (before, after))

    def key(series: Series) -> Hashable:
        return (series.group, series.name) if several else series.name

    olds = {key(series): series for series in before.series}
    pairs = [(olds[key(series)], series) for series in after.series if key(series) in olds]
    if not pairs:
        raise SpecError(
            f"nothing in {before.source!r} ({_names(before.series)}) has the same name as anything in "
            f"{after.source!r} ({_names(after.series)}): name two files of the same kind"
        )
    return pairs


def _notes(before: Side, after: Side, pairs: Sequence[tuple[Series, Series]]) -> list[str]:
    """What limits the table."""
    notes = [DIFFERENT_JOBS]
    groups = [sorted({pair[side].group for pair in pairs}) for side in (0, 1)]
    if groups[0] != groups[1] and all(map(any, groups)):
        notes.append(f"Not the same thing: {', '.join(groups[0])} before, {', '.join(groups[1])} after.")
    facts = sorted(before.environment.keys() & after.environment.keys())
    changed = [fact for fact in facts if before.environment[fact] != after.environment[fact]]
    if changed:
        changes = (f"{fact} {before.environment[fact]} -> {after.environment[fact]}" for fact in changed)
        notes.append(f"Also changed: {'; '.join(changes)}.")
    matched = {id(series) for pair in pairs for series in pair}
    alone = [(side, [one for one in side.series if id(one) not in matched]) for side in (before, after)]
    notes += [f"Only in {side.source}: {_names(series)}." for side, series in alone if series]
    if any(min(len(old.rounds_s), len(new.rounds_s)) < ALARM_ROUNDS for old, new in pairs):
        notes.append(f"A verdict needs {ALARM_ROUNDS} rounds on each side; a report holds medians only.")
    return notes


def _names(series: Sequence[Series]) -> str:
    names = [one.name for one in series[:_SHOWN]]
    return ", ".join([*names, f"{len(series) - _SHOWN} more"] if len(series) > _SHOWN else names)
