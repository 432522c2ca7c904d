"""Leader and followers: rank 0 broadcasts an order, all ranks carry it out, rank 0 gathers their outcomes.

An order is a plain dict of JSON-able data. Between orders a follower only waits for the next one, so this is the only
place where ranks can get out of step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from autotune.profilers.timeline import Timeline
from autotune.results.store.record import RankResult, TrialState
from autotune.runtime.control.mpi import Control, RankSilentError
from autotune.runtime.control.step_directives import Decide
from autotune.runtime.control.time_limit import set_up_limit_s, time_limit
from autotune.runtime.errors import PeerLostError
from autotune.runtime.trial.outcome import RankOutcome
from autotune.runtime.trial.runner import Budget, RankRunner, Retuning
from autotune.workloads.errors import AutotuneError, LossNotFiniteError
from autotune.workloads.plan import Plan
from autotune.workloads.serial import from_data, to_data

_GRACE_S = 5.0
"""How much longer than a trial's time limit the leader waits for the outcome of a rank."""
_SHARE_OF_LIMIT = 2
"""Groups open within one time limit of a trial, steps run within another; models are built besides, as in the set-up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """A trial, combined from the outcomes of all ranks."""

    state: TrialState
    reason: str = ""
    steps_s: tuple[float, ...] = ()
    """Of each step the time of the slowest rank."""
    ranks: tuple[RankResult, ...] = ()
    timeline: Timeline = field(default_factory=Timeline)


class Workers:
    """The ranks of a job, as rank 0 controls them. Not thread-safe: only the main thread of rank 0 calls it."""

    def __init__(self, control: Control, runner: RankRunner) -> None:
        self._control = control
        self._runner = runner

    def measure(self, plan: Plan, budget: Budget) -> Measurement:
        """Run a trial on all ranks."""
        outcomes = self._order({"do": "trial", "plan": to_data(plan), "budget": to_data(budget)}, budget)
        ranks = [outcome[0] for outcome in outcomes]
        return with_finite_losses(combine(ranks), ranks)

    def compare(self, plans: Sequence[Plan], rounds: int, budget: Budget) -> list[Measurement]:
        """Measure several plans on all ranks in interleaved rounds; steps_s holds the mean step of each round."""
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
        """Train `budget.steps` steps on all ranks. With `decide` the plan may change between steps."""
        order = {"do": "train", "plan": to_data(plan), "budget": to_data(budget), "watched": watched}
        order["retuned"] = decide is not None
        outcomes = [outcome[0] for outcome in self._order(order, budget, on_step, decide)]
        measured = combine(outcomes)
        if measured.state is not TrialState.COMPLETE:
            raise TrialFailedError(f"training failed: {measured.reason}")
        losses = tuple(sum(shares) for shares in zip(*(outcome.loss_shares for outcome in outcomes), strict=True))
        accuracy = next((outcome.accuracy for outcome in outcomes if outcome.accuracy is not None), None)
        return Training(measured=measured, losses=losses, accuracy=accuracy)

    def quality(self, plan: Plan, budget: Budget) -> tuple[float, list[float], list[float]]:
        """The cosine between the parameter updates without and with the plan's codec, and the losses of both."""
        order = {"do": "quality", "plan": to_data(plan), "budget": to_data(budget)}
        outcomes = self._order(order, budget)
        for measured in (combine(list(ranks)) for ranks in zip(*outcomes, strict=True)):
            if measured.state is not TrialState.COMPLETE:
                raise TrialFailedError(f"the quality guard failed: {measured.reason}")
        plain, coded = (
            [sum(shares) for shares in zip(*(outcome.loss_shares for outcome in ranks), strict=True)]
            for ranks in zip(*outcomes, strict=True)
        )
        first = plan.used_ranks[0]  # equal on every rank that takes part
        return outcomes[first][1].cosine or 0.0, plain, coded

    def dismiss(self) -> None:
        """End the job: every follower returns."""
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
        try:
            with _limited(self._control, budget):
                mine = carry_out(order, self._runner, on_step, decide)
            found = self._control.gather(to_data(mine), timeout_s=budget.timeout_s + _GRACE_S) or []
        except (RankSilentError, PeerLostError) as error:
            raise LostRankError(Measurement(state=TrialState.FAILED, reason=str(error))) from error
        return [[from_data(RankOutcome, outcome, f"rank {rank}") for outcome in of] for rank, of in enumerate(found)]


def _limited(control: Control, budget: Budget) -> AbstractContextManager[None]:
    """End the job if this rank hangs in a trial. Other ranks than 0 have been missed by rank 0 before."""
    limit_s = _SHARE_OF_LIMIT * budget.timeout_s + set_up_limit_s()
    return time_limit(control, limit_s, "in a trial", "--timeout sets the time limit of a trial")


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A training run, combined from the outcomes of all ranks."""

    measured: Measurement
    losses: tuple[float, ...]
    """Of the whole batch, one per step."""
    accuracy: float | None


class DismissedError(AutotuneError):
    """Rank 0 has ended the job with an error, which it has reported."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("ended by rank 0")
        self.exit_code = exit_code


class TrialFailedError(AutotuneError):
    """A trial failed whose result the job needs."""


class LostRankError(AutotuneError):
    """A rank neither answered nor failed: the trial can be recorded but the job cannot continue."""

    def __init__(self, measurement: Measurement) -> None:
        super().__init__(measurement.reason)
        self.measurement = measurement


def dismiss_followers(control: Control, exit_code: int) -> None:
    """Broadcast rank 0's last order: exit with this code."""
    control.broadcast({"do": "stop", "exit_code": exit_code})


def follow(control: Control, runner: RankRunner) -> None:
    """Carry out the orders of rank 0 until it ends the job. Raises DismissedError where it ended with an error."""
    while (order := control.broadcast())["do"] != "stop":
        with _limited(control, from_data(Budget, order["budget"], "budget")):
            mine = carry_out(order, runner)
        control.gather(to_data(mine))
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
        retuning = Retuning(decide=decide) if order["retuned"] else None
        return [runner.train(plan, budget, on_step, watched=order["watched"], retuning=retuning)]
    return [runner.trial(plan, budget)]


def combine(outcomes: Sequence[RankOutcome]) -> Measurement:
    """One measurement from the ranks' outcomes: a step takes as long as on its slowest rank, the first cause is the reason."""
    faults = [(rank, outcome.fault) for rank, outcome in enumerate(outcomes) if outcome.fault is not None]
    if faults:
        # A lost peer is a consequence, not a cause, and so may be what follows where memory ends. Of several causes the
        # earliest counts.
        rank, fault = min(faults, key=lambda entry: (entry[1].kind != "memory", entry[1].kind == "peer", entry[1].at_s))
        state = TrialState.INFEASIBLE if fault.kind == "memory" else TrialState.FAILED
        named = fault.message.startswith(f"rank {rank} ")
        reason = fault.message if named else f"rank {rank}: {fault.message}"
        return Measurement(state=state, reason=reason)
    return Measurement(
        state=TrialState.COMPLETE,
        steps_s=tuple(max(times) for times in zip(*(outcome.steps_s for outcome in outcomes), strict=True)),
        ranks=tuple(outcome.result for outcome in outcomes if outcome.result is not None),
        timeline=Timeline.merge(outcome.timeline for outcome in outcomes),
    )


def with_finite_losses(measured: Measurement, outcomes: Sequence[RankOutcome]) -> Measurement:
    """The trial, failed if the loss of a rank is nan or inf: its speed is meaningless then."""
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
