"""How gradients travel, retuned while training: the meta-network is asked when the network changes, and checked afterwards.

After ByteScheduler and AutoByte (arXiv 2112.13509). A window of steps under one plan shows what the network and the ranks are
like; the network of heads guesses what each candidate would be worth; one that is surely better is tried. The next window
shows what it is worth: if that is less than nothing, training goes back, and that candidate is not tried again before
the network has changed. Either way the network learns from it. It is asked once at the start and then whenever steps take
longer or shorter than they did, by more than their noise, while no rank computes differently.

Pure data in, data out; the default is always a candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from autotune.online.candidates import Candidates
from autotune.online.features import Grid, Singles
from autotune.online.known import Known
from autotune.online.learning import Case, Memory
from autotune.online.statistics import Window, window
from profilers.step_stats import StepStats
from workloads.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """When to ask, and when to try."""

    window: int = 6
    """Steps."""
    skip: int = 1
    """Steps after a change of plan that say nothing: the first of a schedule does not cross."""
    change: float = 0.1
    """Of the time that a step takes beyond computing, as a share of the step: a change of the network."""
    min_gain: float = 0.03
    doubt: float = 1.0
    """How many spreads worse than guessed a candidate may turn out and still be worth a try."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """Another way for gradients to travel, and why."""

    plan: Plan
    predicted_gain: float
    reason: str
    is_regret: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """A switch until it has shown what it is worth."""

    before: Plan
    seen: Window
    numbers: tuple[Singles, Singles]
    predicted: float


_PATIENT = Patience()


class CommController:
    """Watches one job."""

    def __init__(
        self, known: Known, offers: Callable[[Plan], Candidates], memory: Memory, patience: Patience = _PATIENT
    ) -> None:
        """`offers`: the candidates beside a plan, for its split."""
        self._known, self._offers, self.memory, self._patience = known, offers, memory, patience
        self._plan: Plan | None = None
        self._steps: list[tuple[StepStats, ...]] = []
        self._num_skipped = 0
        self._asked: Window | None = None
        """When it was last asked."""
        self._trial: _Trial | None = None
        self._rejected: set[Plan] = set()

    def observe(self, plan: Plan, closed: tuple[StepStats, ...]) -> None:
        """How a step under `plan` ended on every rank."""
        if self._plan is None or plan != self._plan:
            if self._plan is None or not _same_way(plan, self._plan):
                self._num_skipped = 0
            self._plan, self._steps = plan, []
        if self._num_skipped < self._patience.skip:
            self._num_skipped += 1
            return
        self._steps.append(closed)
        if len(self._steps) > self._patience.window:
            self._steps.pop(0)

    def propose(self) -> Switch | None:
        """Another plan with the same split, if one is surely better; or back, if the last was not."""
        if self._plan is None or len(self._steps) < self._patience.window:
            return None
        seen = window([stats for step in self._steps for stats in step], self._plan, self._known)
        if self._trial is not None:
            trial, self._trial = self._trial, None
            return self._judged(trial, seen)
        if self._asked is not None and not self._has_changed(self._asked, seen):
            return None
        if self._asked is not None:
            self._rejected.clear()
        self._asked = seen
        return self._ask(seen)

    def _ask(self, seen: Window) -> Switch | None:
        offered = self._offers(seen.plan)
        numbers = Grid(offered.plans, self._known).numbers(seen)
        guess = self.memory.network.guess(*numbers)
        barred = np.array([_way(plan) in self._rejected for plan in offered.plans])
        guess = replace(guess, mean=np.where(barred, -np.inf, guess.mean))
        running = offered.index(seen.plan)
        chosen = guess.pick(
            running=running, default=running, min_gain=self._patience.min_gain, doubt=self._patience.doubt
        )
        if chosen == running:
            return None
        predicted = float(guess.mean[chosen] - guess.mean[running])
        self._trial = _Trial(before=seen.plan, seen=seen, numbers=(numbers[0], numbers[1][chosen]), predicted=predicted)
        gain = 1 - math.exp(-predicted)
        reason = f"gradients take {100 * _beyond(seen):.0f} % of a step beyond computing"
        return Switch(plan=offered.plans[chosen], predicted_gain=gain, reason=reason)

    def _judged(self, trial: _Trial, seen: Window) -> Switch | None:
        """Learn from what the switch has brought; back if that is a loss, unless ranks compute differently by now."""
        measured = math.log(trial.seen.step_s / seen.step_s)
        self._asked = seen
        if abs(math.log(trial.seen.compute_s / seen.compute_s)) > self._patience.change:
            return None
        row_window, row = trial.numbers
        self.memory.learn(Case(window=row_window, row=row, predicted=trial.predicted, measured=measured))
        if measured >= 0:
            return None
        self._rejected.add(_way(seen.plan))
        back = replace(trial.before, batch=seen.plan.batch)
        reason = f"steps take {math.exp(-measured):.2f} times what they took before: back to the last way"
        return Switch(plan=back, predicted_gain=measured, reason=reason, is_regret=True)

    def _has_changed(self, before: Window, now: Window) -> bool:
        """Whether steps take another time beyond computing than when it was last asked."""
        return abs(_beyond(now) - _beyond(before)) > self._patience.change


def _beyond(seen: Window) -> float:
    """Share of a step that the slowest rank does not compute."""
    return max(1 - seen.compute_s / seen.step_s, 0.0)


def _way(plan: Plan) -> Plan:
    """The plan whatever its split."""
    return replace(plan, batch=replace(plan.batch, samples=()))


def _same_way(one: Plan, other: Plan) -> bool:
    return _way(one) == _way(other)
