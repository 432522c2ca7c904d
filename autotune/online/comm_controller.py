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
from dataclasses import dataclass, replace

import numpy as np

from autotune.online.candidates import Candidates
from autotune.online.features import Grid, Singles
from autotune.online.known import Known, seconds_per_byte
from autotune.online.learning import Case, Memory
from autotune.online.links import changed_hosts, in_words, links_of, ranks_on, with_links
from autotune.online.statistics import Window, window
from autotune.simulate.collectives import plan_shares
from profilers.step_stats import StepStats
from results.decision import LOOK, NETWORK, REGRET
from workloads.cluster import Cluster
from workloads.plan import Plan


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
    other_compute: float = 0.1
    """Ranks that compute by so much longer or shorter make a switch impossible to judge."""
    min_gain: float = 0.03
    owners_gain: float = 0.01
    """The same for other owners of shards, whose worth follows from the links alone."""
    doubt: float = 1.0
    """How many spreads worse than guessed a candidate may turn out and still be worth a try."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """Another way for gradients to travel, and why; or why there is none, or a look at the links first."""

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
class Question:
    """Why another way is asked for."""

    what: str
    ranks: tuple[int, ...] = ()
    """Whose links changed, where that was looked at."""


_PATIENT = Patience()


class CommController:
    """Watches one job."""

    def __init__(
        self,
        known: Known,
        offers: Callable[[Plan], Candidates],
        memory: Memory,
        patience: Patience = _PATIENT,
        *,
        cluster: Cluster | None = None,
    ) -> None:
        """`offers`: the candidates beside a plan, for its split. `cluster`: the mix, if its links may be looked at."""
        self._known, self._offers, self.memory, self._patience = known, offers, memory, patience
        self._stated = self._mix = cluster
        """As stated, and as last looked at."""
        self._owners: tuple[float, ...] = ()
        """Of shards, as the links that were looked at call for."""
        self._looked = False
        """Whether links were looked at, and nothing has come of it yet."""
        self._question: Question | None = None
        """Why the network is to be asked, as soon as there is a window."""
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
        if self._plan is None or len(self._steps) < self._patience.steps:
            return None
        seen = window([stats for step in self._steps for stats in step], self._plan, self._known)
        if (
            self._trial is None
            and self._asked is not None
            and self._question is None
            and self._has_changed(self._asked)
        ):
            return self._changed(self._asked)
        if self._looked and (switch := self._other_owners(seen)) is not None:
            return switch
        if len(self._steps) < self._patience.window:
            return None
        if self._trial is not None:
            trial, self._trial = self._trial, None
            return self._judged(trial, seen)
        if self._asked is None:
            self._question = Question(what=f"gradients take {_percent(_beyond(seen))} of a step beyond computing")
        return self._answered(seen) if self._question is not None else None

    def _changed(self, before: Window) -> Switch | None:
        """The network is not what it was: forget steps before that, and look which link it is, or ask at once."""
        self._steps = self._steps[-self._patience.steps :]
        self._rejected.clear()
        assert self._plan is not None
        seen = window([stats for step in self._steps for stats in step], self._plan, self._known)
        what = f"gradients take {_percent(_beyond(seen))} of a step beyond computing, not {_percent(_beyond(before))}"
        self._question = Question(what=what)
        if not self._can_look(self._plan):
            return None
        return Switch(plan=self._plan, reason=what, kind=LOOK, switches=False)

    def _answered(self, seen: Window) -> Switch | None:
        """Another way, if one is surely better; if not, and links were looked at, what was found."""
        question, self._question, self._asked = self._question, None, seen
        assert question is not None
        looked, self._looked = self._looked, False
        if (switch := self._ask(seen, question)) is not None or not looked:
            return switch
        return Switch(plan=seen.plan, reason=question.what, ranks=question.ranks, switches=False)

    def _other_owners(self, seen: Window) -> Switch | None:
        """What runs, with the owners that the links call for, where that saves enough: at most what is beyond computing."""
        question, comm, mix = self._question, seen.plan.comm, self._mix
        self._looked = question is not None
        if question is None or mix is None or comm.collective != "shards" or comm.shares == self._owners:
            return None
        ring_s, best = seconds_per_byte("ring", mix), self._known.shards_gain or 1.0
        saved_s = seen.wire_bytes * ring_s * (1 / self._known.collective_gain(comm) - 1 / best)
        gain = min(saved_s / seen.step_s, _beyond(seen))
        if gain < self._patience.owners_gain:
            return None
        self._question, self._asked, self._looked = None, seen, False
        plan = replace(seen.plan, comm=replace(comm, shares=self._owners))
        self._trial = _Trial(before=seen.plan, seen=seen, predicted=-math.log(1 - gain))
        return Switch(plan=plan, predicted_gain=gain, reason=question.what, ranks=question.ranks)

    def found(self, arrivals: Sequence[Sequence[float]]) -> None:
        """What ranks have received from one another just now, a row for each."""
        if self._mix is None or self._stated is None or self._plan is None:
            return
        before, hosts = self._mix, self._mix.host_of_rank
        firsts = [arrivals[hosts.index(host)] for host in range(len(before.hosts))]
        self._mix = with_links(self._stated, links_of(firsts))
        ratios = changed_hosts(before, self._mix)
        self._known = self._known.on_links(self._mix, self._stated, self._plan.comm)
        self._owners = plan_shares(self._mix)
        self._looked = True
        self._question = Question(what=in_words(self._mix, ratios), ranks=ranks_on(self._mix, list(ratios)))

    def _can_look(self, plan: Plan) -> bool:
        return self._mix is not None and len(self._mix.hosts) > 1 and plan.comm.transport == "gloo"

    def _ask(self, seen: Window, question: Question) -> Switch | None:
        offered = self._owned(self._offers(seen.plan), seen.plan)
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
        return Switch(plan=offered.plans[chosen], predicted_gain=gain, reason=question.what, ranks=question.ranks)

    def _owned(self, offered: Candidates, running: Plan) -> Candidates:
        """Shards owned as the links call for, if they were looked at; what runs stays as it is."""
        if not self._owners:
            return offered
        plans = [
            replace(plan, comm=replace(plan.comm, shares=self._owners))
            if plan.comm.collective == "shards" and plan != running
            else plan
            for plan in offered.plans
        ]
        return replace(offered, plans=tuple(dict.fromkeys([*plans, *self._reowned(running)])))

    def _reowned(self, running: Plan) -> list[Plan]:
        """What runs, with the owners that the links call for."""
        is_shards = running.comm.collective == "shards"
        return [replace(running, comm=replace(running.comm, shares=self._owners))] if is_shards else []

    def _judged(self, trial: _Trial, seen: Window) -> Switch | None:
        """Learn from what the switch has brought; back if that is a loss, unless ranks compute differently by now. If it is
        a gain, there may be something better still.
        """
        measured = math.log(trial.seen.step_s / seen.step_s)
        self._asked = seen
        if abs(math.log(trial.seen.compute_s / seen.compute_s)) > self._patience.other_compute:
            return None
        if trial.numbers is not None:
            row_window, row = trial.numbers
            self.memory.learn(Case(window=row_window, row=row, predicted=trial.predicted, measured=measured))
        if measured >= 0:
            return self._ask(seen, Question(what=f"the last way has saved {_percent(1 - math.exp(-measured))}"))
        self._rejected.add(_way(seen.plan))
        self._asked = trial.seen  # steps are to be as they were before it
        back = replace(trial.before, batch=seen.plan.batch)
        reason = f"steps take {math.exp(-measured):.2f} times what they took before: back to the last way"
        return Switch(plan=back, predicted_gain=measured, reason=reason, kind=REGRET)

    def _has_changed(self, before: Window) -> bool:
        """Whether the last steps all take longer, or all shorter, beyond computing than when it was last asked."""
        off = [_beyond_of(step) - _beyond(before) for step in self._steps[-self._patience.steps :]]
        return min(off) > self._patience.change or max(off) < -self._patience.change


def _beyond(seen: Window) -> float:
    """Share of a step that the slowest rank does not compute."""
    return max(1 - seen.compute_s / seen.step_s, 0.0)


def _beyond_of(step: Sequence[StepStats]) -> float:
    """The same of one step."""
    return max(1 - max(stats.compute_s for stats in step) / max(stats.step_s for stats in step), 0.0)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _way(plan: Plan) -> Plan:
    """The plan whatever its split."""
    return replace(plan, batch=replace(plan.batch, samples=()))


def _same_way(one: Plan, other: Plan) -> bool:
    return _way(one) == _way(other)
