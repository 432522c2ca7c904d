"""Retuning while training: decides from the statistics of each step whether the next one runs under another plan.

The split follows the devices (`batch_controller`, after DBS). The communication configuration follows the network
(`comm_controller`, after AutoByte). The compute times of a step are available at its end. Its duration is available one
step later; until then its waiting time is taken from the step before. The split has precedence, because one step is
enough to see a change of a device. While samples move, the network is not evaluated.
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
    """The controller of one training run; call `decide` once per step, in order."""

    def __init__(  # noqa: PLR0913 - the job, and what may change
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
        """`comm`: if the communication configuration may change. `moves_samples`: whether the split may. `clock`: the time of
        decisions.
        """
        self.plan = plan
        """The plan of the next step."""
        self.decisions: list[Decision] = []
        self._on_decision = on_decision
        self.comm = comm
        self._moves_samples, self._clock = moves_samples, clock
        self._batches = BatchController(limits, global_batch)
        self._last: tuple[Plan, tuple[float, ...]] = plan, (0.0,)
        """The previous step: its plan, and the compute time of each rank."""
        self._waited_s = 0.0

    def decide(self, row: StepRow) -> Decision | None:
        """The decision for the next step; None to continue."""
        (plan_before, compute_before_s), self._last = self._last, (self.plan, row.compute_s)
        if row.arrivals is not None:
            self._note_links(row.step, row.arrivals)
        if row.closed is None or row.samples != self.plan.batch.samples:
            return None  # the first step, or the short last one of an epoch
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
        """Apply and log a link probe, even if no switch follows."""
        finding = self.comm.update_links(arrivals) if self.comm is not None else None
        if finding is not None:
            decision = Decision(
                step=step, plan=self.plan, kind=NETWORK, ranks=finding.ranks, reason=finding.what, switches=False
            )
            self._decided(decision)

    def _decided(self, undated: Decision) -> Decision:
        decision = replace(undated, at_s=self._clock())
        self.plan = decision.plan
        self.decisions.append(decision)
        self._on_decision(decision)
        return decision
