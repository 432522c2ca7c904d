"""How gradients travel, retuned while training: the meta-network is asked when the network changes, and checked afterwards.

After ByteScheduler and AutoByte (arXiv 2112.13509). A window of steps under one plan shows what the network and the ranks are
like; the network of heads guesses what each candidate would be worth; one that is surely better is tried. The next window
shows what it is worth: if that is less than nothing, training goes back, and that candidate is not tried again before
the network has changed. Either way the network learns from it. It is asked once at the start and then whenever steps take
longer or shorter than they did, by more than their noise, while no rank computes differently.

Before it is asked again, links are looked at (`found`), where ranks are on several hosts: which of them changed is what a log
should say, and who should own shards.

Pure data in, data out; the default is always a candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from autotune.online.background import Thinks, at_once
from autotune.online.candidates import Candidates
from autotune.online.features import Grid, Singles
from autotune.online.learning import Case, Memory
from autotune.online.link_estimate import LinkView, Sight, beyond
from autotune.online.priors import Known
from autotune.online.simulator_check import SecondOpinion, averaged
from autotune.online.window import Window, window
from autotune.profilers.step_stats import StepStats
from autotune.results.store.decision import LOOK, NETWORK, REGRET
from autotune.workloads.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """When to ask, and when to try."""

    window: int = 6
    """Steps."""
    skip: int = 1
    """Steps after a change of plan that say nothing: the first of a schedule does not cross."""
    change: float = 0.02
    """Of the time that a step takes beyond computing, as a share of the step: a change of the network …"""
    steps: int = 4
    """… where so many in a row are off to the same side."""
    first_break: int = 15
    longest_break: int = 120
    """Steps that a change is not followed by another; twice as many each time, unless it was calm for twice as long."""
    tries: int = 3
    """Ways that may turn out worse before the network has to change for it to be asked again."""
    other_compute: float = 0.1
    """Ranks that compute by so much longer or shorter make a switch impossible to judge."""
    min_gain: float = 0.03
    owners_gain: float = 0.01
    """The same for other owners of shards, whose worth follows from the links alone."""
    doubt: float = 1.0
    """How many spreads worse than guessed a candidate may turn out and still be worth a try."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """Another way for gradients to travel, and why; or a look at the links first."""

    plan: Plan
    reason: str
    predicted_gain: float = 0.0
    kind: str = NETWORK
    ranks: tuple[int, ...] = ()
    """Whose links changed, where that was looked at."""
    switches: bool = True
    """Whether the plan is another one than the one that runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """A switch until it has shown what it is worth."""

    before: Plan
    seen: Window
    predicted: float
    numbers: tuple[Singles, Singles] | None = None
    """What it was predicted from, if the network was asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """A way that is surely better."""

    switch: Switch
    trial: _Trial


_PATIENT = Patience()
_REST_S = 60.0


class CommController:
    """Watches one job."""

    def __init__(  # noqa: PLR0913 - a job, and what may be known of it
        self,
        known: Known,
        offers: Callable[[Plan], Candidates],
        memory: Memory,
        *,
        links: LinkView | None = None,
        opinion: SecondOpinion | None = None,
        thinks: Thinks = at_once,
    ) -> None:
        """`offers`: the candidates beside a plan, for its split. `links`: the mix, if its links may be looked at. `opinion`: of a
        simulator, where there is a cost model. `thinks`: where what takes longer than a step may wait is done; the answer is
        taken up when it is there.
        """
        self._thinks = thinks
        self._answer: tuple[Plan, Future[_Answer | None]] | None = None
        """For which plan it was asked, and what comes of it."""
        self._links, self._opinion = links, opinion
        self._known, self._offers, self.memory, self._patience = known, offers, memory, _PATIENT
        self._looked = False
        """Whether links were looked at, and nothing has come of it yet."""
        self._question: Sight | None = None
        """Why the network is to be asked, as soon as there is a window."""
        self._plan: Plan | None = None
        self._steps: list[tuple[StepStats, ...]] = []
        self._num_skipped = 0
        self._asked: Window | None = None
        """When it was last asked."""
        self._trial: _Trial | None = None
        self._rejected: set[Plan] = set()
        self._num_steps = 0
        self._changed_at, self._break = -_PATIENT.longest_break, _PATIENT.first_break
        """When the network was last seen to change, and how long it is not asked after from there on."""

    def observe(self, plan: Plan, closed: tuple[StepStats, ...]) -> None:
        """How a step under `plan` ended on every rank."""
        self._num_steps += 1
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
        if self._answer is not None or len(self._steps) < self._patience.steps:
            return self._take_up(*self._answer) if self._answer is not None else None
        if self._trial is None and self._question is None and self._asked is not None:
            return self._changed(self._asked) if self._has_changed(self._asked) else None
        if self._looked and (switch := self._other_owners(self._window())) is not None:
            return switch
        if len(self._steps) < self._patience.window:
            return None
        if self._trial is not None:
            trial, self._trial = self._trial, None
            return self._judged(trial, self._window())
        return self._answered(self._window())

    def _window(self) -> Window:
        assert self._plan is not None
        return window([stats for step in self._steps for stats in step], self._plan, self._known)

    def _changed(self, before: Window) -> Switch | None:
        """The network is not what it was: forget steps before that, and look which link it is, or ask at once."""
        self._take_a_break()
        self._steps = self._steps[-self._patience.steps :]
        self._rejected.clear()
        assert self._plan is not None
        seen = self._window()
        what = f"gradients take {_percent(beyond(seen))} of a step beyond computing, not {_percent(beyond(before))}"
        self._question = Sight(what=what, ranks=())
        if self._links is None:
            return None
        self._links.is_current = False
        if not self._links.can_look(seen):
            return None
        return Switch(plan=self._plan, reason=what, kind=LOOK, switches=False)

    def _take_a_break(self) -> None:
        """A network that swings is not asked after at every turn: breaks get longer while there are no calmer times."""
        since, rule = self._num_steps - self._changed_at, self._patience
        self._break = min(2 * self._break, rule.longest_break) if since < 2 * self._break else rule.first_break
        self._changed_at = self._num_steps

    def _answered(self, seen: Window) -> Switch | None:
        """Another way, if one is surely better."""
        first = f"gradients take {_percent(beyond(seen))} of a step beyond computing"
        question = self._question or Sight(what=first, ranks=())
        self._question, self._asked, self._looked = None, seen, False
        return self._think(seen, lambda: self._ask(seen, question))

    def _think(self, seen: Window, ask: Callable[[], _Answer | None]) -> Switch | None:
        """Have a question answered, now or soon."""
        self._answer = seen.plan, self._thinks(ask)
        return self._take_up(*self._answer)

    def _take_up(self, plan: Plan, coming: Future[_Answer | None]) -> Switch | None:
        """The answer, if it is there; what was asked of another plan is forgotten, and asked again."""
        if not coming.done():
            return None
        self._answer, answer = None, coming.result()
        if plan != self._plan:
            self._question = self._question or Sight(what="samples have moved meanwhile", ranks=())
            return None
        if answer is None:
            return None
        self._trial = answer.trial
        return answer.switch

    def _other_owners(self, seen: Window) -> Switch | None:
        """What runs, with the owners that the links call for, where that saves enough."""
        question = self._question
        if self._links is None or question is None:
            return None
        gain = self._links.owners_gain(seen, self._known)
        if gain < self._patience.owners_gain:
            return None
        self._question, self._asked, self._looked = None, seen, False
        self._trial = _Trial(before=seen.plan, seen=seen, predicted=-math.log(1 - gain))
        plan = self._links.with_owners(seen.plan)
        return Switch(plan=plan, predicted_gain=gain, reason=question.what, ranks=question.ranks)

    def rest(self) -> None:
        """Wait until nothing is being thought about."""
        self._thinks(lambda: None).result(timeout=_REST_S)

    def found(self, arrivals: Sequence[Sequence[float]]) -> Sight | None:
        """What ranks have received from one another just now, a row for each; and what that says."""
        if self._links is None or self._plan is None:
            return None
        self._question, self._looked = self._links.take_in(arrivals), True
        self._known = self._links.known(self._known, self._plan.comm)
        return self._question

    def _ask(self, seen: Window, question: Sight) -> _Answer | None:
        """A way that is surely better. It changes nothing here, so that it may take its time elsewhere."""
        offered = self._offers(seen.plan)
        if self._links is not None:
            offered = self._links.owned(offered, seen.plan)
        numbers = Grid(offered.plans, self._known).numbers(seen)
        guess = self.memory.network.guess(*numbers)
        if self._opinion is not None and self._links is not None and self._links.is_current:
            guess = averaged(guess, self._opinion.gains(offered.plans, seen, self._links.cluster))
        barred = np.array([_way(plan) in self._rejected for plan in offered.plans])
        guess = replace(guess, mean=np.where(barred, -np.inf, guess.mean))
        running = offered.index(seen.plan)
        chosen = guess.pick(
            running=running, default=running, min_gain=self._patience.min_gain, doubt=self._patience.doubt
        )
        if chosen == running:
            return None
        predicted = float(guess.mean[chosen] - guess.mean[running])
        trial = _Trial(before=seen.plan, seen=seen, numbers=(numbers[0], numbers[1][chosen]), predicted=predicted)
        gain = 1 - math.exp(-predicted)
        switch = Switch(plan=offered.plans[chosen], predicted_gain=gain, reason=question.what, ranks=question.ranks)
        return _Answer(switch=switch, trial=trial)

    def _judged(self, trial: _Trial, seen: Window) -> Switch | None:
        """Learn from what the switch has brought; back if that is a loss, unless ranks compute differently by now. If it is
        a gain, there may be something better still.
        """
        measured = math.log(trial.seen.step_s / seen.step_s)
        self._asked = seen
        if abs(math.log(trial.seen.compute_s / seen.compute_s)) > self._patience.other_compute:
            return None
        if measured >= 0:
            better = Sight(what=f"the last way has saved {_percent(1 - math.exp(-measured))}", ranks=())

            def learn_and_ask() -> _Answer | None:
                self._learn(trial, measured)
                return self._ask(seen, better)

            return self._think(seen, learn_and_ask)
        self._thinks(lambda: self._learn(trial, measured))
        self._rejected.add(_way(seen.plan))
        self._asked = trial.seen  # steps are to be as they were before it
        back = replace(trial.before, batch=seen.plan.batch)
        reason = f"steps take {math.exp(-measured):.2f} times what they took before: back to the last way"
        if len(self._rejected) < self._patience.tries:
            self._question = Sight(what="the last way was none", ranks=())
        return Switch(plan=back, predicted_gain=measured, reason=reason, kind=REGRET)

    def _learn(self, trial: _Trial, measured: float) -> None:
        if trial.numbers is not None:
            row_window, row = trial.numbers
            self.memory.learn(Case(window=row_window, row=row, predicted=trial.predicted, measured=measured))

    def _has_changed(self, before: Window) -> bool:
        """Whether the last steps all take longer, or all shorter, beyond computing than when it was last asked."""
        if self._num_steps < self._changed_at + self._break:
            return False
        waited_s, least_s = before.step_s - before.compute_s, self._patience.change * before.step_s
        off_s = [_waited_s(step) - waited_s for step in self._steps[-self._patience.steps :]]
        return min(off_s) > least_s or max(off_s) < -least_s


def _waited_s(step: Sequence[StepStats]) -> float:
    """What one step took beyond the slowest rank's computing."""
    return max(stats.step_s for stats in step) - max(stats.compute_s for stats in step)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _way(plan: Plan) -> Plan:
    """The plan whatever its split."""
    return replace(plan, batch=replace(plan.batch, samples=()))


def _same_way(one: Plan, other: Plan) -> bool:
    return _way(one) == _way(other)
