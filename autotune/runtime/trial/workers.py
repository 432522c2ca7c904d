"""Leader and followers: rank 0 gives an order, all ranks carry it out, rank 0 hears from everyone.

An order is a plain dict, broadcast as JSON-able data. A follower does nothing but wait for orders, so there is one
place where ranks can be out of step, and it is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.profilers.timeline import Timeline
from autotune.results.store.record import RankResult, TrialState
from autotune.runtime.control.mpi import Control, RankSilentError
from autotune.runtime.control.step_directives import Decide
from autotune.runtime.trial.runner import Budget, RankOutcome, RankRunner, Steering
from autotune.workloads.errors import AutotuneError, LossNotFiniteError
from autotune.workloads.plan import Plan
from autotune.workloads.serial import from_data, to_data

_GRACE_S = 5.0
"""How much longer than a trial's time limit the leader waits for a silent rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """A trial as all ranks saw it together."""

    state: TrialState
    reason: str = ""
    steps_s: tuple[float, ...] = ()
    """Each step: the slowest rank's time."""
    ranks: tuple[RankResult, ...] = ()
    timeline: Timeline = field(default_factory=Timeline)


class Workers:
    """The ranks of a job, as rank 0 sees them."""

    def __init__(self, control: Control, runner: RankRunner) -> None:
        self._control = control
        self._runner = runner

    def measure(self, plan: Plan, budget: Budget) -> Measurement:
        """Run a trial on all ranks."""
        outcomes = self._order({"do": "trial", "plan": to_data(plan), "budget": to_data(budget)}, budget)
        ranks = [outcome[0] for outcome in outcomes]
        return with_finite_losses(combine(ranks), ranks)

    def compare(self, plans: Sequence[Plan], rounds: int, budget: Budget) -> list[Measurement]:
        """Run several plans in turn on all ranks; a measurement's steps_s holds the mean step of each round."""
        order = {"do": "compare", "plans": to_data(list(plans)), "rounds": rounds, "budget": to_data(budget)}
        measured = [combine(outcomes) for outcomes in zip(*self._order(order, budget), strict=True)]
        if failed := next((m for m in measured if m.state is not TrialState.COMPLETE), None):
            raise TrialFailedError(f"the comparison failed: {failed.reason}: run the same command again")
        return measured

    def train(
        self,
        plan: Plan,
        budget: Budget,
        on_step: Callable[[int], None],
        *,
        watched: bool,
        decide: Decide | None = None,
    ) -> Training:
        """Train on all ranks for as long as the effort says; if somebody decides, the plan may change on the way."""
        order = {"do": "train", "plan": to_data(plan), "budget": to_data(budget), "watched": watched}
        order["steered"] = decide is not None
        outcomes = [outcome[0] for outcome in self._order(order, budget, on_step, decide)]
        measured = combine(outcomes)
        if measured.state is not TrialState.COMPLETE:
            raise TrialFailedError(f"training failed: {measured.reason}")
        losses = tuple(sum(shares) for shares in zip(*(outcome.loss_shares for outcome in outcomes), strict=True))
        return Training(measured=measured, losses=losses, accuracy=outcomes[0].accuracy)

    def quality(self, plan: Plan, budget: Budget) -> tuple[float, list[float], list[float]]:
        """How much training with the plan's codec goes the way of training without (cosine), and the losses of both."""
        order = {"do": "quality", "plan": to_data(plan), "budget": to_data(budget)}
        outcomes = self._order(order, budget)
        for measured in (combine(list(ranks)) for ranks in zip(*outcomes, strict=True)):
            if measured.state is not TrialState.COMPLETE:
                raise TrialFailedError(f"the quality guard failed: {measured.reason}")
        plain, coded = (
            [sum(shares) for shares in zip(*(outcome.loss_shares for outcome in ranks), strict=True)]
            for ranks in zip(*outcomes, strict=True)
        )
        return outcomes[0][1].cosine or 0.0, plain, coded

    def dismiss(self) -> None:
        """The job is done: every follower returns."""
        dismiss_followers(self._control, exit_code=0)
        self._runner.close()

    def _order(
        self,
        order: dict[str, Any],
        budget: Budget,
        on_step: Callable[[int], None] = lambda _: None,
        decide: Decide | None = None,
    ) -> list[list[RankOutcome]]:
        self._control.broadcast(order)
        mine = carry_out(order, self._runner, on_step, decide)
        try:
            return self._control.gather(mine, timeout_s=budget.timeout_s + _GRACE_S) or []
        except RankSilentError as error:
            raise LostRankError(Measurement(state=TrialState.FAILED, reason=str(error))) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A training run as all ranks saw it together."""

    measured: Measurement
    losses: tuple[float, ...]
    """Of the whole batch, step by step."""
    accuracy: float | None


class DismissedError(AutotuneError):
    """Rank 0 has ended the job and has said why."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("ended by rank 0")
        self.exit_code = exit_code


class TrialFailedError(AutotuneError):
    """Something that must not fail did: there is nothing to go on with."""


class LostRankError(AutotuneError):
    """A rank neither answered nor failed; the trial can be recorded but the job cannot go on."""

    def __init__(self, measurement: Measurement) -> None:
        super().__init__(measurement.reason)
        self.measurement = measurement


def dismiss_followers(control: Control, exit_code: int) -> None:
    """Rank 0's last order: leave, with this exit code."""
    control.broadcast({"do": "stop", "exit_code": exit_code})


def follow(control: Control, runner: RankRunner) -> None:
    """What every rank but 0 does until dismissed. Raises DismissedError where rank 0 ended the job with an error."""
    while (order := control.broadcast())["do"] != "stop":
        control.gather(carry_out(order, runner))
    runner.close()
    if order["exit_code"]:
        raise DismissedError(order["exit_code"])


def carry_out(
    order: dict[str, Any],
    runner: RankRunner,
    on_step: Callable[[int], None] = lambda _: None,
    decide: Decide | None = None,
) -> list[RankOutcome]:
    """This rank's part of an order."""
    budget = from_data(Budget, order["budget"], "budget")
    if order["do"] == "compare":
        plans = [from_data(Plan, plan, "plan") for plan in order["plans"]]
        return runner.compare(plans, order["rounds"], budget)
    plan = from_data(Plan, order["plan"], "plan")
    if order["do"] == "quality":
        return runner.quality(plan, budget)
    if order["do"] == "train":
        steering = Steering(decide=decide) if order["steered"] else None
        return [runner.train(plan, budget, on_step, watched=order["watched"], steering=steering)]
    return [runner.trial(plan, budget)]


def combine(outcomes: Sequence[RankOutcome]) -> Measurement:
    """One measurement from the ranks' outcomes: the slowest rank sets each step, the first cause sets the failure."""
    faults = [(rank, outcome.fault) for rank, outcome in enumerate(outcomes) if outcome.fault is not None]
    if faults:
        # A rank that lost its peer is a consequence; among causes the earliest came first.
        rank, fault = min(faults, key=lambda entry: (entry[1].kind == "peer", entry[1].at_s))
        state = TrialState.INFEASIBLE if fault.kind == "memory" else TrialState.FAILED
        reason = fault.message if fault.kind == "memory" else f"rank {rank}: {fault.message}"
        return Measurement(state=state, reason=reason)
    return Measurement(
        state=TrialState.COMPLETE,
        steps_s=tuple(max(times) for times in zip(*(outcome.steps_s for outcome in outcomes), strict=True)),
        ranks=tuple(outcome.result for outcome in outcomes if outcome.result is not None),
        timeline=Timeline.merge(outcome.timeline for outcome in outcomes),
    )


def with_finite_losses(measured: Measurement, outcomes: Sequence[RankOutcome]) -> Measurement:
    """A trial as it is, or failed where the loss of a rank became nan or inf: how fast that was means nothing."""
    found = [
        (step, rank, loss)
        for rank, outcome in enumerate(outcomes)
        for step, loss in enumerate(outcome.loss_shares, start=1)
        if not math.isfinite(loss)
    ]
    if measured.state is not TrialState.COMPLETE or not found:
        return measured
    step, rank, loss = min(found)
    return Measurement(state=TrialState.FAILED, reason=f"rank {rank}: {LossNotFiniteError(loss, step)}")
