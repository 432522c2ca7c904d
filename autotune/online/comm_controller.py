"""Retunes the communication configuration while training, with a meta-network that predicts the gain of every candidate.

After ByteScheduler and AutoByte (arXiv 2112.13509). A window of steps under one plan measures the network and the ranks.
The meta-network predicts the gain of each candidate, and the best one is tried if even its lower bound is a gain. The next
window verifies it: after a loss, training returns to the previous plan, and the candidate is rejected until the network
changes. The meta-network is fine-tuned on every measured gain. Candidates are evaluated once at the start, and again
whenever steps take longer or shorter beyond their noise while no rank's compute time changes.

If ranks are on several hosts, the links are probed before candidates are evaluated again (`update_links`). The probe shows
which link changed, for the log and for the owner shares.

Pure computation without a clock. The default is always a candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from autotune.online.background import Submit, run_inline
from autotune.online.candidates import Candidates
from autotune.online.features import FeatureTable, Float32s
from autotune.online.learning import Case, Memory
from autotune.online.link_estimate import Finding, LinkEstimate, beyond
from autotune.online.priors import Priors
from autotune.online.simulator_check import SimulatorCheck, averaged
from autotune.online.window import Window, window
from autotune.profilers.step_stats import StepStats
from autotune.results.store.decision import LOOK, NETWORK, REGRET
from autotune.workloads.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchThresholds:
    """When to evaluate candidates, and when to switch."""

    window: int = 6
    """Steps of a window."""
    skip: int = 1
    """Steps after a change of plan that are ignored: the first step of a schedule has no cross-step overlap."""
    change: float = 0.02
    """Change of the time beyond computing, as a share of the step, that counts as a change of the network …"""
    steps: int = 4
    """… if this many consecutive steps deviate to the same side."""
    first_break: int = 15
    longest_break: int = 120
    """Steps after a change of the network in which no other one is detected. The break doubles with each change, unless the
    network was stable for twice the break."""
    tries: int = 3
    """Candidates that may be rejected until the next change of the network."""
    other_compute: float = 0.1
    """Log ratio of compute times from which a switch cannot be verified."""
    min_gain: float = 0.03
    owners_gain: float = 0.01
    """Least gain of other owner shares; it follows from the links only and needs no prediction."""
    num_spreads: float = 1.0
    """A candidate is tried if mean - `num_spreads` · spread is at least `min_gain`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """A switch to another plan and its reason; or a request to probe the links."""

    plan: Plan
    reason: str
    predicted_gain: float = 0.0
    kind: str = NETWORK
    ranks: tuple[int, ...] = ()
    """Ranks whose links changed, as far as the links were probed."""
    switches: bool = True
    """Whether the plan differs from the running plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """A switch until it is verified."""

    before: Plan
    seen: Window
    """The last window before the switch."""
    predicted: float
    features: tuple[Float32s, Float32s] | None = None
    """Of the window and the candidate; None if the meta-network was not used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """The result of an evaluation: a better candidate."""

    switch: Switch
    trial: _Trial


_DEFAULT = SwitchThresholds()
_IDLE_TIMEOUT_S = 60.0


class CommController:
    """The communication controller of one job."""

    def __init__(  # noqa: PLR0913 - a job, and what is known of it
        self,
        priors: Priors,
        candidates_for: Callable[[Plan], Candidates],
        memory: Memory,
        *,
        links: LinkEstimate | None = None,
        check: SimulatorCheck | None = None,
        submit: Submit = run_inline,
    ) -> None:
        """`candidates_for`: the candidates for the split of a plan. `links`: if the links may be probed. `check`: for a job with
        a cost model. `submit`: runs an evaluation; its result is used by a later `propose`.
        """
        self._submit = submit
        self._pending: tuple[Plan, Future[_Answer | None]] | None = None
        """An evaluation, and the plan that it is for."""
        self._links, self._check = links, check
        self._priors, self._candidates_for, self.memory, self._thresholds = priors, candidates_for, memory, _DEFAULT
        self._probed = False
        """Whether a link probe was made since the last evaluation."""
        self._reason: Finding | None = None
        """Why candidates are to be evaluated with the next window."""
        self._plan: Plan | None = None
        self._steps: list[tuple[StepStats, ...]] = []
        self._num_skipped = 0
        self._evaluated: Window | None = None
        """The window of the last evaluation."""
        self._trial: _Trial | None = None
        self._rejected: set[Plan] = set()
        self._num_steps = 0
        self._changed_at, self._break = -_DEFAULT.longest_break, _DEFAULT.first_break
        """Step of the last change of the network, and the break after it."""

    def observe(self, plan: Plan, closed: tuple[StepStats, ...]) -> None:
        """Add a step under `plan`: the statistics of every rank."""
        self._num_steps += 1
        if self._plan is None or plan != self._plan:
            if self._plan is None or not _same_configuration(plan, self._plan):
                self._num_skipped = 0
            self._plan, self._steps = plan, []
        if self._num_skipped < self._thresholds.skip:
            self._num_skipped += 1
            return
        self._steps.append(closed)
        if len(self._steps) > self._thresholds.window:
            self._steps.pop(0)

    def propose(self) -> Switch | None:
        """A switch to a better plan with the same split, back to the previous plan, or to a link probe; None to stay."""
        if self._pending is not None or len(self._steps) < self._thresholds.steps:
            return self._result(*self._pending) if self._pending is not None else None
        if self._trial is None and self._reason is None and self._evaluated is not None:
            return self._changed(self._evaluated) if self._has_changed(self._evaluated) else None
        if self._probed and (switch := self._other_owners(self._window())) is not None:
            return switch
        if len(self._steps) < self._thresholds.window:
            return None
        if self._trial is not None:
            trial, self._trial = self._trial, None
            return self._verified(trial, self._window())
        return self._evaluate(self._window())

    def wait_for_tasks(self) -> None:
        """Wait until all background tasks are done."""
        self._submit(lambda: None).result(timeout=_IDLE_TIMEOUT_S)

    def update_links(self, arrivals: Sequence[Sequence[float]]) -> Finding | None:
        """Apply a link probe: the receive speeds of every rank."""
        if self._links is None or self._plan is None:
            return None
        self._reason, self._probed = self._links.update(arrivals), True
        self._priors = self._links.updated_priors(self._priors, self._plan.comm)
        return self._reason

    def _window(self) -> Window:
        assert self._plan is not None
        return window([stats for step in self._steps for stats in step], self._plan, self._priors)

    def _has_changed(self, before: Window) -> bool:
        """Whether the time beyond computing of the last steps is longer, or shorter, than at the last evaluation."""
        if self._num_steps < self._changed_at + self._break:
            return False
        waited_s, least_s = before.step_s - before.compute_s, self._thresholds.change * before.step_s
        deviations_s = [_waited_s(step) - waited_s for step in self._steps[-self._thresholds.steps :]]
        return min(deviations_s) > least_s or max(deviations_s) < -least_s

    def _changed(self, before: Window) -> Switch | None:
        """The network has changed: discard earlier steps, and request a link probe if that is possible."""
        self._start_break()
        self._steps = self._steps[-self._thresholds.steps :]
        self._rejected.clear()
        assert self._plan is not None
        seen = self._window()
        what = f"gradients take {_percent(beyond(seen))} of a step beyond computing, not {_percent(beyond(before))}"
        self._reason = Finding(what=what, ranks=())
        if self._links is None:
            return None
        self._links.is_current = False
        if not self._links.can_probe(seen):
            return None
        return Switch(plan=self._plan, reason=what, kind=LOOK, switches=False)

    def _start_break(self) -> None:
        """Breaks get longer while a flapping network never stays stable for long."""
        since, rule = self._num_steps - self._changed_at, self._thresholds
        self._break = min(2 * self._break, rule.longest_break) if since < 2 * self._break else rule.first_break
        self._changed_at = self._num_steps

    def _other_owners(self, seen: Window) -> Switch | None:
        """The running plan with the owner shares for the links, if that saves enough."""
        reason = self._reason
        if self._links is None or reason is None:
            return None
        gain = self._links.owners_gain(seen, self._priors)
        if gain < self._thresholds.owners_gain:
            return None
        self._reason, self._evaluated, self._probed = None, seen, False
        self._trial = _Trial(before=seen.plan, seen=seen, predicted=-math.log(1 - gain))
        plan = self._links.with_owners(seen.plan)
        return Switch(plan=plan, predicted_gain=gain, reason=reason.what, ranks=reason.ranks)

    def _evaluate(self, seen: Window) -> Switch | None:
        """Evaluate all candidates, inline or as a background task."""
        first = f"gradients take {_percent(beyond(seen))} of a step beyond computing"
        reason = self._reason or Finding(what=first, ranks=())
        self._reason, self._evaluated, self._probed = None, seen, False
        return self._start(seen, lambda: self._best(seen, reason))

    def _start(self, seen: Window, task: Callable[[], _Answer | None]) -> Switch | None:
        self._pending = seen.plan, self._submit(task)
        return self._result(*self._pending)

    def _result(self, plan: Plan, pending: Future[_Answer | None]) -> Switch | None:
        """The result of an evaluation, if it is done. A result for another plan is dropped and evaluated again."""
        if not pending.done():
            return None
        self._pending, answer = None, pending.result()
        if plan != self._plan:
            self._reason = self._reason or Finding(what="samples have moved meanwhile", ranks=())
            return None
        if answer is None:
            return None
        self._trial = answer.trial
        return answer.switch

    def _best(self, seen: Window, reason: Finding) -> _Answer | None:
        """The best candidate, if it is better than the running plan. Modifies nothing: it may run as a background task."""
        candidates = self._candidates_for(seen.plan)
        if self._links is not None:
            candidates = self._links.owned(candidates, seen.plan)
        features = FeatureTable(candidates.plans, self._priors).features(seen)
        estimate = self.memory.network.predict(*features)
        if self._check is not None and self._links is not None and self._links.is_current:
            estimate = averaged(estimate, self._check.gains(candidates.plans, seen, self._links.cluster))
        rejected = np.array([_configuration(plan) in self._rejected for plan in candidates.plans])
        estimate = replace(estimate, mean=np.where(rejected, -np.inf, estimate.mean))
        running, rule = candidates.index(seen.plan), self._thresholds
        chosen = estimate.pick(running=running, default=running, min_gain=rule.min_gain, num_spreads=rule.num_spreads)
        if chosen == running:
            return None
        predicted = float(estimate.mean[chosen] - estimate.mean[running])
        trial = _Trial(before=seen.plan, seen=seen, features=(features[0], features[1][chosen]), predicted=predicted)
        gain = 1 - math.exp(-predicted)
        switch = Switch(plan=candidates.plans[chosen], predicted_gain=gain, reason=reason.what, ranks=reason.ranks)
        return _Answer(switch=switch, trial=trial)

    def _verified(self, trial: _Trial, seen: Window) -> Switch | None:
        """Learn from the measured gain of a switch: return to the previous plan after a loss, evaluate again after a gain.

        Not possible if compute times have changed since.
        """
        measured = math.log(trial.seen.step_s / seen.step_s)
        self._evaluated = seen
        if abs(math.log(trial.seen.compute_s / seen.compute_s)) > self._thresholds.other_compute:
            return None
        if measured >= 0:
            saved = f"the last communication configuration has saved {_percent(1 - math.exp(-measured))}"
            reason = Finding(what=saved, ranks=())

            def learn_and_evaluate() -> _Answer | None:
                self._learn(trial, measured)
                return self._best(seen, reason)

            return self._start(seen, learn_and_evaluate)
        self._submit(lambda: self._learn(trial, measured))
        self._rejected.add(_configuration(seen.plan))
        self._evaluated = trial.seen  # steps are expected to be as before the switch
        back = replace(trial.before, batch=seen.plan.batch)
        slower = f"steps take {math.exp(-measured):.2f} times what they took before: back to the last configuration"
        if len(self._rejected) < self._thresholds.tries:
            self._reason = Finding(what="the last communication configuration was slower", ranks=())
        return Switch(plan=back, predicted_gain=measured, reason=slower, kind=REGRET)

    def _learn(self, trial: _Trial, measured: float) -> None:
        if trial.features is not None:
            of_window, of_candidate = trial.features
            case = Case(window=of_window, row=of_candidate, predicted=trial.predicted, measured=measured)
            self.memory.learn(case)


def _waited_s(step: Sequence[StepStats]) -> float:
    """Time of one step beyond the slowest rank's compute time."""
    return max(stats.step_s for stats in step) - max(stats.compute_s for stats in step)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _configuration(plan: Plan) -> Plan:
    """The plan without its split."""
    return replace(plan, batch=replace(plan.batch, samples=()))


def _same_configuration(one: Plan, other: Plan) -> bool:
    return _configuration(one) == _configuration(other)
