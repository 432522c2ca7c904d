"""Retuning while training: from how every rank's steps go, when to go on by another plan, and by which.

Samples follow the devices (`batch_controller`, after DBS), and how gradients travel follows the network (`comm_controller`,
after AutoByte). What a step shows at once is how long each rank has computed; what it took in all is known one step later,
and until then it is taken to have waited as long as the step before. Samples go first, since they can be told from one step;
while they move, the network is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from autotune.online.batch_controller import BatchController
from autotune.online.comm_controller import CommController
from autotune.profilers.step_stats import StepRow
from autotune.results.store.decision import COMPUTE, NETWORK, REGRET, Decision
from autotune.workloads.plan import Plan
from autotune.workloads.split import Bounds


class Controller:
    """Decides for one training run; `decide` hears of every step, in order."""

    def __init__(  # noqa: PLR0913 - the job, and what may be decided of it
        self,
        plan: Plan,
        limits: Bounds,
        global_batch: int,
        *,
        comm: CommController | None = None,
        moves_samples: bool = True,
        clock: Callable[[], float] = lambda: 0.0,
        on_decision: Callable[[Decision], None] = lambda _: None,
    ) -> None:
        """`comm`: if how gradients travel may change as well. `moves_samples`: whether the split may. `clock`: what decisions are
        dated by.
        """
        self.plan = plan
        """By which the next step goes."""
        self.decisions: list[Decision] = []
        self._on_decision = on_decision
        self.comm = comm
        self._moves_samples, self._clock = moves_samples, clock
        self._batches = BatchController(limits, global_batch)
        self._last: tuple[Plan, tuple[float, ...]] = plan, (0.0,)
        """The step before: its plan, and how long each rank has computed."""
        self._waited_s = 0.0

    def decide(self, row: StepRow) -> Decision | None:
        """What is different from the next step on, if anything."""
        (plan_before, compute_before_s), self._last = self._last, (self.plan, row.compute_s)
        if row.arrivals is not None:
            self._note_links(row.step, row.arrivals)
        if row.closed is None or row.samples != self.plan.batch.samples:
            return None  # the first step, and the short last one of an epoch, are like no other
        self._waited_s = max(max(stats.step_s for stats in row.closed) - max(compute_before_s), 0.0)
        step_s = max(row.compute_s) + self._waited_s
        self._batches.observe(row.step, self.plan.batch.samples, row.compute_s, step_s)
        move = self._batches.propose(row.step) if self._moves_samples else None
        if self.comm is not None:
            self.comm.observe(plan_before, row.closed)
        if move is not None:
            plan = replace(self.plan, batch=replace(self.plan.batch, samples=move.samples))
            kind = REGRET if move.predicted_gain < 0 else COMPUTE
            return self._decided(
                Decision(
                    step=row.step + 1,
                    plan=plan,
                    kind=kind,
                    ranks=move.ranks,
                    predicted_gain=move.predicted_gain,
                    reason=move.reason,
                )
            )
        switch = self.comm.propose() if self.comm is not None and plan_before == self.plan else None
        if switch is not None:
            return self._decided(
                Decision(
                    step=row.step + 1,
                    plan=switch.plan,
                    kind=switch.kind,
                    ranks=switch.ranks,
                    predicted_gain=switch.predicted_gain,
                    reason=switch.reason,
                    switches=switch.switches,
                )
            )
        return None

    def _note_links(self, step: int, arrivals: Sequence[Sequence[float]]) -> None:
        """What a look has found stands in the log, whatever comes of it."""
        sight = self.comm.found(arrivals) if self.comm is not None else None
        if sight is not None:
            found = Decision(
                step=step, plan=self.plan, kind=NETWORK, ranks=sight.ranks, reason=sight.what, switches=False
            )
            self._decided(found)

    def _decided(self, undated: Decision) -> Decision:
        decision = replace(undated, at_s=self._clock())
        self.plan = decision.plan
        self.decisions.append(decision)
        self._on_decision(decision)
        return decision
