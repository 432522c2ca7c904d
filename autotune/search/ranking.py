"""Simulate, then measure: predictions of all candidates, corrected by what was measured, choose the next plan to run.

Candidates are every choice of knobs with the split that the devices call for, small moves from the best plan so far, and
what Optuna proposes over the joint space. Alternately the plan with the best corrected prediction and the one with the
largest expected gain, which weighs what is still uncertain, is measured. When no candidate promises more than the noise
of a measurement, there is nothing left to learn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from autotune.results.store.record import TrialRecord
from autotune.search.local_search import knob_plans, moved
from autotune.search.residual import Case, Residual, expected_gain
from autotune.simulate.simulator import Simulator
from autotune.space.space import Space
from autotune.workloads.plan import Plan

_AS_GOOD = 0.003


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What to measure next."""

    plan: Plan
    predicted_s: float
    expected_s: float
    """The prediction, corrected."""
    gain: float
    """Expected gain over the best plan so far, as a share."""


class Ranking:
    """Chooses by prediction; keeps predictions, since candidates come again."""

    def __init__(self, simulator: Simulator, space: Space) -> None:
        self._simulator, self._space = simulator, space
        self._predicted: dict[Plan, float] = {}

    def predicted_s(self, plan: Plan) -> float:
        if plan not in self._predicted:
            self._predicted[plan] = self._simulator.step_s(plan)
        return self._predicted[plan]

    def choose(  # noqa: PLR0913 - what a choice rests on
        self,
        records: Sequence[TrialRecord],
        split: tuple[int, ...],
        best: Plan | None,
        proposed: Sequence[Mapping[str, Any]] = (),
        *,
        explore: bool,
        others: Sequence[tuple[int, ...]] = (),
    ) -> Choice | None:
        """The next plan, or None where everything promising has been measured. `others`: splits that leave ranks out."""
        measured = {record.plan for record in records}
        candidates = [plan for plan in self._candidates(split, others, best, proposed) if plan not in measured]
        if not candidates:
            return None
        return self.pick(candidates, records, explore=explore)

    def _candidates(
        self,
        split: tuple[int, ...],
        others: Sequence[tuple[int, ...]],
        best: Plan | None,
        proposed: Sequence[Mapping[str, Any]],
    ) -> list[Plan]:
        space = self._space
        starts = [split, *others]
        near: list[Plan] = []
        if best is not None and best.pipeline is None:
            starts.append(best.batch.samples)
            near = [plan for plan in moved(best, space) if space.reaches(plan.batch.samples)]
        plans = [plan for start in starts if space.reaches(start) for plan in knob_plans(space, start)]
        plans += near
        plans += [plan for point in proposed if space.holds(plan := space.plan(point))]
        reached = dict.fromkeys(plans or space.staged.plans)
        return [plan for plan in reached if not self._simulator.is_tight or self._simulator.fits(plan)]

    def pick(self, candidates: Sequence[Plan], records: Sequence[TrialRecord], *, explore: bool) -> Choice:
        """The candidate with the best corrected prediction or, to `explore`, with the largest expected gain."""
        error, spread = self._residual(records).expect([self._features(plan) for plan in candidates])
        predicted = np.array([self.predicted_s(plan) for plan in candidates])
        expected = np.log(predicted) + error
        steps = [fmean(record.steps_s) for record in records if record.step_s is not None]
        gain = expected_gain(math.log(min(steps)), expected, spread) if steps else np.full(len(candidates), np.inf)
        index = int(np.argmax(gain)) if explore else int(np.argmin(expected))
        return Choice(
            plan=candidates[index],
            predicted_s=float(predicted[index]),
            expected_s=float(np.exp(expected[index])),
            gain=float(gain.max()),
        )

    def final(self, records: Sequence[TrialRecord]) -> TrialRecord | None:
        """The trial of the plan to keep: of all that ran, the one with the best corrected prediction, and of those that are
        as good the one that uses the least CPU time.

        Its own trials count most, those of plans like it count too: the fastest of a few noisy trials is often only lucky.
        """
        ran = list({record.plan: record for record in reversed(records) if record.step_s is not None}.values())
        if not ran:
            return None
        error, _ = self._residual(records).expect([self._features(record.plan) for record in ran])
        expected = np.log([self.predicted_s(record.plan) for record in ran]) + error
        as_good = [record for record, log_s in zip(ran, expected, strict=True) if log_s <= expected.min() + _AS_GOOD]
        return min(as_good, key=lambda record: record.cpu_s_per_step)

    def _residual(self, records: Sequence[TrialRecord]) -> Residual:
        between = between_trials(records)
        return Residual([case for record in records if (case := self._case(record, between)) is not None])

    def _case(self, record: TrialRecord, between: float) -> Case | None:
        if record.step_s is None:
            return None
        noise = (
            stdev(record.steps_s) / fmean(record.steps_s) / math.sqrt(len(record.steps_s))
            if len(record.steps_s) > 1
            else 0.05
        )
        return Case(
            features=self._features(record.plan),
            log_error=math.log(fmean(record.steps_s) / self.predicted_s(record.plan)),
            noise=math.hypot(noise, between),
        )

    def _features(self, plan: Plan) -> tuple[float, ...]:
        """What a simulator is likely to misjudge; one unit is about as far as errors stay alike."""
        num_units = len(self._simulator.wire_bytes(plan))
        transports = [float(plan.comm.transport == name) for name in self._space.transports]
        codecs = [float(name in plan.compression.codecs) for name in self._space.codecs]
        reducers = [float(plan.comm.reducer == name) for name in ("ddp", "scheduled")]
        ways = [
            plan.comm.crosses_steps,
            plan.comm.collective != "ring",
            bool(plan.compression.factors),
            bool(plan.compression.by_kind),
            plan.pipeline is not None,
        ]
        return (math.log2(max(num_units, 1)) / 2, *reducers, *map(float, ways), *transports, *codecs)


def between_trials(records: Sequence[TrialRecord]) -> float:
    """How far two trials of one plan are apart, as a share: more than their own steps tell. From plans measured again."""
    means: dict[Plan, list[float]] = {}
    for record in records:
        if record.step_s is not None:
            means.setdefault(record.plan, []).append(math.log(fmean(record.steps_s)))
    spreads = [stdev(logs) ** 2 for logs in means.values() if len(logs) > 1]
    return math.sqrt(fmean(spreads)) if spreads else 0.0
