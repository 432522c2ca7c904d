"""What a rank's compute time is a function of: t = c · (φ + w), fitted from what was seen.

w is work (samples, or tokens), c the time of a unit of it, and φ the work that everything fixed is worth. The two are learned
apart, because they change apart: a busy neighbour or a throttled clock slows everything (c), while φ belongs to the model and
the device and stays. φ is learned whenever the rank's work changes (`fixed_work`); before that it is 0, what DBS (arXiv
2007.11831) assumes. c is a median over what was seen since the last change.

A change: the last steps are all off to the same side, by more than the rank's own noise; the more they are off, the fewer it
takes. Then everything before them is forgotten, but not φ, and not how much the rank scatters. A single step is believed
as well, because to wait for a second one costs a slow step. How far off it must be depends on what else could explain it:
- nothing makes a step much *shorter* but a faster rank;
- a longer one may be a hiccup, so it must be longer than any hiccup of late, if there were some, and than a quarter at most;
- changes come together: where another rank has surely changed, what is beyond noise is believed (`reconsider`).
A step that turns out to have been a hiccup brings back what was known before it. Whether to believe so much pays is for
others to judge (`batch_controller`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from autotune.online.fixed_work import FixedWork, Turn, differ
from autotune.workloads.split import RankCost


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """How far off a step must be."""

    least: float
    """Share of the expected time."""
    spreads: float
    """Times what steps usually scatter."""

    def over(self, scatter: float) -> float:
        return max(self.least, self.spreads * scatter)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity:
    """When a rank is believed to have changed."""

    least: tuple[float, ...] = (0.25, 0.03, 0.02)
    """One step, two in a row, or three: off to the same side by this share of the expected time at least."""
    spreads: tuple[float, ...] = (10.0, 6.0, 4.0)
    """And by this many times what steps usually scatter."""
    single: Bar = field(default_factory=lambda: Bar(least=0.05, spreads=8.0))
    """One step, of a rank that has shown how calm it is: hiccups of late must have been smaller by `beyond_hiccups`."""
    beyond_hiccups: float = 1.5
    calm: int = 12
    """Steps that show it."""
    hiccup_memory: int = 100
    faster: Bar = field(default_factory=lambda: Bar(least=0.04, spreads=6.0))
    """One step, shorter than expected."""
    together: Bar = field(default_factory=lambda: Bar(least=0.03, spreads=4.0))
    """One step, where another rank has surely changed in it."""
    memory: int = 10
    """Steps that are looked back on."""

    @property
    def steps(self) -> int:
        """The most that a change takes to be believed."""
        return len(self.least)


_DEFAULT = Sensitivity()
Seen = tuple[float, float]
"""Work, and the seconds that it took."""
_MAD_TO_SIGMA = 1.4826
_LEAST_SCATTER, _FIRST_SCATTER = 0.003, 0.02
"""At least so much is expected of any rank, and so much of one that has not shown it yet."""


class RankCostModel:
    """One rank, as far as it has been seen."""

    def __init__(self, sensitivity: Sensitivity = _DEFAULT) -> None:
        self._sensitivity = sensitivity
        self._seen: deque[Seen] = deque(maxlen=sensitivity.memory)
        self._settled = FixedWork()
        """φ as all changes of work but the last have shown it."""
        self._turn: Turn | None = None
        """The last change of work, while it is new."""
        self._fixed_work = 0.0
        """φ, with what the last change shows so far."""
        self._scatter = _FIRST_SCATTER
        self._before: list[Seen] = []
        """What was known before a change that one step has shown, until the next step confirms it."""
        self._num_observed = 0
        self._hiccups: deque[tuple[int, float]] = deque()
        """Steps that were off and came back: when, and how far."""

    def observe(self, work: float, compute_s: float) -> bool:
        """Take note of a step; whether the rank has just turned out to have changed. A step without work says nothing."""
        if work <= 0 or compute_s <= 0:
            return False
        self._num_observed += 1
        self._note_turn(work, compute_s)
        self._seen.append((work, compute_s))
        if self._before:
            before, self._before = self._before, []
            if self._was_hiccup(before):
                return True
        units_s = self._units_s(self._seen)
        believed = self._steps_that_tell(units_s)
        if believed:
            self._forget_all_but(believed)
        elif len(units_s) > self._sensitivity.steps:
            self._scatter = max(_spread(units_s), _LEAST_SCATTER)
            self._note_hiccup(units_s)
        return believed > 0

    def reconsider(self) -> bool:
        """Another rank has surely changed in the step seen last: whether this one has as well, by the lower bar."""
        bar = self._sensitivity.together.over(self._scatter)
        if len(self._seen) < 2 or abs(_off(self._units_s(self._seen), 1)[0]) <= bar:
            return False
        self._forget_all_but(1)
        return True

    def _forget_all_but(self, count: int) -> None:
        self._turn, self._fixed_work = None, self._settled.work  # it was the rank that changed
        seen = list(self._seen)
        self._before = seen[:-1] if count == 1 else []
        self._seen.clear()
        self._seen.extend(seen[-count:])

    def _was_hiccup(self, before: list[Seen]) -> bool:
        """Whether the step after a change that one step has shown is as those before it: then they count again."""
        slow, last = _off(self._units_s([*before, *self._seen]), 2)
        if abs(last) > self._sensitivity.together.over(self._scatter):
            return False
        self._add_hiccup(abs(slow))
        steps = [*before, self._seen[-1]]
        self._seen.clear()
        self._seen.extend(steps)
        return True

    def _note_hiccup(self, units_s: list[float]) -> None:
        """The step before the last, if it was off and nobody believed it."""
        previous, last = _off(units_s, 2)
        if abs(previous) > self._sensitivity.together.over(self._scatter) and abs(last) < abs(previous) / 2:
            self._add_hiccup(abs(previous))

    def _add_hiccup(self, off: float) -> None:
        self._hiccups.append((self._num_observed, off))

    def _single_bar(self) -> float:
        """How much longer than expected one step must take to be believed."""
        rule = self._sensitivity
        while self._hiccups and self._hiccups[0][0] < self._num_observed - rule.hiccup_memory:
            self._hiccups.popleft()
        surely = max(rule.least[0], rule.spreads[0] * self._scatter)
        if self._num_observed <= rule.calm:
            return surely
        hiccup = max((off for _, off in self._hiccups), default=0.0)
        return min(max(rule.single.over(self._scatter), rule.beyond_hiccups * hiccup), surely)

    @property
    def num_steps(self) -> int:
        """Seen since the last change."""
        return len(self._seen)

    @property
    def unit_s(self) -> float:
        """c: the time of a unit of work."""
        return _middle(self._units_s(self._seen))

    @property
    def spread(self) -> float:
        """How much steps scatter about what is expected, as a share of it (a robust standard deviation)."""
        return self._scatter

    def predict_s(self, work: float) -> float:
        """Compute time of that much work; none takes none."""
        return self.unit_s * (self._fixed_work + work) if work > 0 else 0.0

    def at_work(self, compute_s: float, done: float, other: float) -> float:
        """What a step that took `compute_s` for the work `done` would have taken for other work."""
        if other <= 0:
            return 0.0
        return compute_s * (self._fixed_work + other) / (self._fixed_work + done) if done > 0 else self.predict_s(other)

    def cost(self, work_per_sample: float = 1.0, unit_s: float | None = None) -> RankCost:
        """As a line over samples, for a unit that takes what it does now, or as given."""
        unit_s = self.unit_s if unit_s is None else unit_s
        return RankCost(fixed_s=unit_s * self._fixed_work, per_sample_s=unit_s * work_per_sample)

    def units_of(self, work: float, compute_s: float) -> float:
        """c, as this one step has it."""
        return compute_s / (self._fixed_work + work)

    def _note_turn(self, work: float, compute_s: float) -> None:
        """Where the work has just become another, what is off is laid to φ as far as that explains it."""
        if self._seen and work != self._seen[-1][0]:
            self._flush()
            before = self._seen[-1][0]
            if differ(work, before):
                self._turn = Turn(
                    before=before, before_s=self.predict_s(before), num_before=len(self._seen), after=work
                )
        if self._turn is None:
            return
        self._turn = replace(self._turn, after_s=(*self._turn.after_s, compute_s))
        self._fixed_work = self._settled.with_turn(self._turn, self._scatter).work
        if len(self._turn.after_s) == self._sensitivity.steps:
            self._flush()

    def _flush(self) -> None:
        if self._turn is not None:
            self._settled, self._turn = self._settled.with_turn(self._turn, self._scatter), None
        self._fixed_work = self._settled.work

    def _units_s(self, seen: Iterable[Seen]) -> list[float]:
        return [self.units_of(work, compute_s) for work, compute_s in seen]

    def _steps_that_tell(self, units_s: list[float]) -> int:
        """How many of the last steps show a change; 0: they show none."""
        rule = self._sensitivity
        for count in range(1, min(rule.steps, len(units_s) - 1) + 1):
            off = _off(units_s, count)
            slower = faster = max(rule.least[count - 1], rule.spreads[count - 1] * self._scatter)
            if count == 1:
                slower, faster = self._single_bar(), rule.faster.over(self._scatter)
            if min(off) > slower or max(off) < -faster:
                return count
        return 0


def _off(units_s: list[float], count: int) -> list[float]:
    """By how much the last steps are off what those before them make expect, in logarithms."""
    expected = _middle(units_s[:-count])
    return [math.log(unit_s / expected) for unit_s in units_s[-count:]]


def _spread(units_s: list[float]) -> float:
    unit_s = _middle(units_s)
    return _MAD_TO_SIGMA * _middle([abs(one / unit_s - 1) for one in units_s])


def _middle(values: list[float]) -> float:
    """The median; statistics' own takes longer for a few values, and this is asked dozens of times a step."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
