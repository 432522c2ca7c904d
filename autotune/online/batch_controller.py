"""Adapts the split of the global batch to the measured speeds of the ranks.

The idea is that of DBS (arXiv 2007.11831): samples in proportion to speed. Differences: it acts after a few steps, not
epochs; a rank's time is a line with a fixed part; the split is the exact optimum in whole samples under memory caps; a
move needs a gain above noise; and every move is verified afterwards.

Verification: ranks report their own compute times. A misreporting rank that reports too little would get more and more
samples while every step waits for it. The unexplained time of a step, step - max(compute), is what communication takes,
and it must not grow because samples have moved. If it does, the move is rolled back.

Flapping: a rank whose speed changes faster than samples can move must not be followed. From the times of a step follows
what any split would have taken. The controller compares two totals over the last steps: following every change with a
delay of one step, and the best single split. If the single split was faster, it is used for as long as that holds.

Pure computation without a clock: call `observe` after each step, and `propose` whenever a move is possible.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import mul
from statistics import fmean, median

from autotune.online.rank_cost import RankCostModel, Sensitivity
from autotune.workloads.errors import SpecError
from autotune.workloads.split import Bounds, RankCost, balanced

Split = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """A proposed split and its reason."""

    samples: tuple[int, ...]
    predicted_gain: float
    """Share of the step time that the move is expected to save."""
    reason: str
    ranks: tuple[int, ...] = ()
    """Ranks whose speed has changed since the last move."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveThresholds:
    """When to move, and when to roll a move back."""

    first: int = 5
    """Steps before the first move: the noise of the ranks must be measured first."""
    verify: int = 3
    """Steps under a new split before the move is verified."""
    least_gain: float = 0.01
    """Least predicted gain of a move, as a share of the step time. A move discards prefetched samples."""
    spreads: float = 3.0
    """Least predicted gain of a move, in standard errors of the ranks' times."""
    kept_gain: float = 0.5
    """A move is rolled back if the unexplained time grew by more than this share of the predicted gain (or of
    `least_gain`, if that is larger), and by more than its own noise."""
    patience: int = 20
    """Steps until a move that was not applied is dropped, and the pause after the first rollback; each further pause is
    twice as long."""
    history: int = 32
    """Steps over which following every change is compared with a single split."""
    single_split_gain: float = 0.01
    """Least gain of the single split in that comparison, as a share of the step time."""
    flapping_steps: int = 4
    """Steps with a change, out of `history`, from which ranks count as flapping and the comparison is made."""
    sensitivity: Sensitivity = field(default_factory=Sensitivity)


_DEFAULT = MoveThresholds()
_QUANTILES = (0.5, 0.75, 1.0)
"""Candidates for the single split: every rank as slow as in this quantile of the steps."""
_STEPS_PER_OUTLIER = 24
"""One step in this many is left out of means as an outlier."""
_UNCHANGED = 0.02
"""Log ratio of a rank's times below which it counts as unchanged."""
_MEDIAN_TO_MEAN = 1.2533
"""Standard error of a median relative to that of a mean, of normal noise."""
_JUMP_TO_SPREAD = 1.0483
"""Standard deviation of normal noise relative to the median difference of neighbours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    samples: tuple[int, ...]
    compute_s: tuple[float, ...]
    step_s: float

    @property
    def unexplained_s(self) -> float:
        return self.step_s - max(self.compute_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """A proposed move until it is verified."""

    move: Move
    before: tuple[int, ...]
    proposed_at: int
    step_s: float
    """Median before the move."""
    unexplained_s: float
    """Median before the move."""


class BatchController:
    """The batch controller of one job."""

    def __init__(self, limits: Bounds, global_batch: int, thresholds: MoveThresholds = _DEFAULT) -> None:
        limits.check(global_batch)
        self._limits, self._total, self._thresholds = limits, global_batch, thresholds
        self._ranks = [RankCostModel(thresholds.sensitivity) for _ in limits.caps]
        self._seen: deque[_Seen] = deque(maxlen=thresholds.sensitivity.history)
        """Steps under the current split."""
        self._work_per_sample: deque[float] = deque(maxlen=thresholds.sensitivity.history)
        self._num_steps = 0
        self._followed: Split = ()
        """The split that follows every change; it need not be the current one."""
        self._followed_s: deque[float] = deque(maxlen=thresholds.history)
        """Compute time of the last steps under that split."""
        self._done: deque[list[tuple[float, float]]] = deque(maxlen=thresholds.history)
        """Work and compute time of each rank in the last steps."""
        self._unexplained_s: deque[float] = deque(maxlen=thresholds.history)
        """Of the last steps, under any split."""
        self._changed_in: deque[int] = deque(maxlen=thresholds.history)
        """Steps in which a rank changed."""
        self._trial: _Trial | None = None
        self._pause_until = 0
        self._num_rollbacks = 0
        self._changes: dict[int, float] = {}
        """Ranks that have changed since the last move, and the ratio of their times."""

    @property
    def imbalance(self) -> float | None:
        """Relative imbalance of compute times over the last steps, max/mean - 1; None before the first step."""
        if not self._seen:
            return None
        recent = list(self._seen)[-self._thresholds.verify :]
        times = [median(seen.compute_s[rank] for seen in recent) for rank in range(len(self._ranks))]
        return max(times) / fmean(times) - 1

    def observe(
        self,
        step: int,
        samples: Sequence[int],
        compute_s: Sequence[float],
        step_s: float,
        work: Sequence[float] | None = None,
    ) -> None:
        """Add a step: samples and compute time (without waiting) of each rank, and the duration of the step.

        `work`: of each rank, for samples of unequal work. `samples` is the current split, not that of a short last batch of
        an epoch: omit such a step, or pass its work.
        """
        self._check(samples, compute_s)
        done = [min(seconds, step_s) for seconds in compute_s]  # a longer compute time than the step is misreported
        amounts = [float(count) for count in samples] if work is None else list(work)
        changed = self._note_changes(amounts, done)
        if self._seen and self._seen[-1].samples != tuple(samples):
            self._seen.clear()
        if changed:
            self._changed_in.append(self._num_steps)
            self._pause_until = min(self._pause_until, step)  # a rolled back move may now be right
            self._trial = None  # the predicted gain is no longer valid
            while len(self._seen) >= self._thresholds.sensitivity.steps:
                self._seen.popleft()
        self._num_steps += 1
        self._work_per_sample.append(sum(amounts) / self._total)
        self._seen.append(_Seen(samples=tuple(samples), compute_s=tuple(done), step_s=step_s))
        self._unexplained_s.append(self._seen[-1].unexplained_s)
        self._note_followed(tuple(samples), amounts, done)

    def _note_changes(self, work: list[float], compute_s: list[float]) -> bool:
        """Add a step to every rank's cost model; returns whether any rank has changed."""
        before = [model.unit_s if model.num_steps else None for model in self._ranks]
        changed = [model.observe(w, t) for model, w, t in zip(self._ranks, work, compute_s, strict=True)]
        if any(changed):  # ranks often change together
            changed = [
                found or (w > 0 and model.reconsider())
                for found, model, w in zip(changed, self._ranks, work, strict=True)
            ]
        for rank, (found, unit_s) in enumerate(zip(changed, before, strict=True)):
            if found and unit_s is not None:
                self._changes[rank] = self._changes.get(rank, 1.0) * self._ranks[rank].unit_s / unit_s
        return any(changed)

    def _take_changes(self) -> tuple[tuple[int, ...], str]:
        """Ranks that have changed since the last call, and a clause for the log."""
        changes, self._changes = self._changes, {}
        lasting = {rank: ratio for rank, ratio in changes.items() if abs(math.log(ratio)) > _UNCHANGED}
        clause = ", ".join(f"rank {rank} takes {ratio:.2f} times as long as before" for rank, ratio in lasting.items())
        return tuple(lasting), f"{clause}; " if clause else ""

    def _note_followed(self, samples: Split, work: list[float], compute_s: list[float]) -> None:
        """Record the compute time of the step under the split that follows every change."""
        self._followed = self._followed or samples
        per_sample = self._work_per_sample[-1]
        self._followed_s.append(
            max(
                model.at_work(t, w, count * per_sample)
                for model, t, w, count in zip(self._ranks, compute_s, work, self._followed, strict=True)
            )
        )
        self._done.append(list(zip(work, compute_s, strict=True)))

    def propose(self, step: int) -> Move | None:
        """A better split, or the previous one if the last move is rolled back; None to stay."""
        if not self._seen:
            return None
        if self._trial is not None:
            return self._verify(step, self._trial)
        if any(model.num_steps == 0 for model in self._ranks):
            return None  # no cost is known of a rank that never had work
        target = self._target_split()
        if self._num_steps < self._thresholds.first or step < self._pause_until:
            return None
        return self._move_to(step, target)

    def _target_split(self) -> Split:
        """The split for the current speeds, or the best single split if ranks are flapping and it was faster."""
        per_sample = median(self._work_per_sample)
        costs = [model.cost(per_sample) for model in self._ranks]
        found = balanced(costs, self._total, self._limits)
        before_s, after_s = (_slowest_s(costs, split) + self._rest_s() for split in (self._followed, found))
        if 1 - after_s / before_s >= self._least_gain():
            self._followed = found
        if (
            sum(self._num_steps - step < self._thresholds.history for step in self._changed_in)
            < self._thresholds.flapping_steps
        ):
            return self._followed  # not flapping
        single, taken_s = self._best_single(per_sample)
        followed_s = self._mean_step_s(self._followed_s)
        return single if taken_s < (1 - self._thresholds.single_split_gain) * followed_s else self._followed

    def _best_single(self, per_sample: float) -> tuple[Split, float]:
        """The split with the least total time over the last steps, and its mean step time."""
        tried, units_s = {self._seen[-1].samples}, self._units_s()
        ordered_s = [sorted(each) for each in zip(*units_s, strict=True)]
        for quantile in _QUANTILES:
            units = [each[int(quantile * (len(each) - 1))] for each in ordered_s]
            costs = [model.cost(per_sample, unit) for model, unit in zip(self._ranks, units, strict=True)]
            tried.add(balanced(costs, self._total, self._limits))
        taken_s = {split: self._mean_s_under(split, per_sample, units_s) for split in tried}
        best = min(taken_s, key=lambda split: taken_s[split])
        return best, taken_s[best]

    def _mean_s_under(self, samples: Split, per_sample: float, units_s: Sequence[Sequence[float]]) -> float:
        """Mean time of the last steps under a split."""
        weights = [
            cost.fixed_s + cost.per_sample_s * n for cost, n in zip(self._unit_costs(per_sample), samples, strict=True)
        ]
        return self._mean_step_s(max(map(mul, units, weights)) for units in units_s)

    def _units_s(self) -> list[list[float]]:
        """Time of a unit of work on each rank in each of the last steps."""
        return [[model.units_of(w, t) for model, (w, t) in zip(self._ranks, done, strict=True)] for done in self._done]

    def _mean_step_s(self, slowest_s: Iterable[float]) -> float:
        """Mean of steps with these compute times; outliers, the few longest, are left out."""
        ordered = sorted(slowest_s)
        return fmean(ordered[: len(ordered) - len(ordered) // _STEPS_PER_OUTLIER]) + self._rest_s()

    def _unit_costs(self, per_sample: float) -> list[RankCost]:
        """The costs of the ranks if a unit of work took one second."""
        return [model.cost(per_sample, 1.0) for model in self._ranks]

    def _move_to(self, step: int, target: Split) -> Move | None:
        now = self._seen[-1].samples
        if target == now:
            return None
        per_sample = median(self._work_per_sample)
        costs = [model.cost(per_sample) for model in self._ranks]
        slowest = max(range(len(now)), key=lambda rank: costs[rank].fixed_s + costs[rank].per_sample_s * now[rank])
        if target == self._followed:
            before_s, after_s = (_slowest_s(costs, split) + self._rest_s() for split in (now, target))
            gain = 1 - after_s / before_s
            reason = f"rank {slowest} takes {100 * gain:.0f} % of a step longer than necessary"
        else:
            units_s = self._units_s()
            before_s, after_s = (self._mean_s_under(split, per_sample, units_s) for split in (now, target))
            gain = 1 - after_s / before_s
            reason = f"rank {slowest} is flapping too fast to be followed"
        if gain < self._least_gain():
            return None
        ranks, clause = self._take_changes()
        move = Move(samples=target, predicted_gain=gain, reason=clause + reason, ranks=ranks)
        self._trial = _Trial(
            move=move,
            before=now,
            proposed_at=step,
            step_s=median(seen.step_s for seen in self._seen),
            unexplained_s=median(seen.unexplained_s for seen in self._seen),
        )
        return move

    def _rest_s(self) -> float:
        """Time of a step beyond computing."""
        return max(median(seen.unexplained_s for seen in self._seen), 0.0)

    def _least_gain(self) -> float:
        return max(self._thresholds.least_gain, self._thresholds.spreads * self._error())

    def _verify(self, step: int, trial: _Trial) -> Move | None:
        """Verify the last move once it has been applied for some steps; returns a rollback or the next move."""
        if self._seen[-1].samples != trial.move.samples:
            if step > trial.proposed_at + self._thresholds.patience:
                self._trial = None  # it was not applied
            return None
        if len(self._seen) < self._thresholds.verify:
            return None
        self._trial = None
        unexplained_s = median(seen.unexplained_s for seen in self._seen)
        expected = max(trial.move.predicted_gain, self._thresholds.least_gain)
        grown = (unexplained_s - trial.unexplained_s) / trial.step_s
        noise = max(self._error(), self._unexplained_error_s() / trial.step_s)
        if grown <= max(self._thresholds.kept_gain * expected, self._thresholds.spreads * noise):
            if grown <= 0:
                self._num_rollbacks = 0
            return self.propose(step)
        step_s = median(seen.step_s for seen in self._seen)
        if step_s <= trial.step_s * (1 - trial.move.predicted_gain * (1 - self._thresholds.kept_gain)):
            return None  # faster nevertheless
        return self._roll_back(step, trial, step_s)

    def _roll_back(self, step: int, trial: _Trial, step_s: float) -> Move:
        self._pause_until = step + self._thresholds.patience * 2**self._num_rollbacks
        self._num_rollbacks += 1
        predicted_s = trial.step_s * (1 - trial.move.predicted_gain)
        return Move(
            samples=trial.before,
            predicted_gain=1 - trial.step_s / step_s,
            reason=f"steps take {step_s / predicted_s:.2f} times what the ranks' reported times predict: back to the last split",
        )

    def _error(self) -> float:
        """Largest relative standard error of a rank's time."""
        return max(_MEDIAN_TO_MEAN * model.spread / math.sqrt(model.num_steps) for model in self._ranks)

    def _unexplained_error_s(self) -> float:
        """Standard error of the median unexplained time; from differences of neighbours, since its level may change."""
        jumps_s = [abs(after_s - before_s) for before_s, after_s in pairwise(self._unexplained_s)]
        return _MEDIAN_TO_MEAN * _JUMP_TO_SPREAD * median(jumps_s) / math.sqrt(self._thresholds.verify)

    def _check(self, samples: Sequence[int], compute_s: Sequence[float]) -> None:
        if not len(samples) == len(compute_s) == len(self._ranks) or sum(samples) != self._total:
            raise SpecError(
                f"samples {list(samples)} and {len(compute_s)} compute times for {len(self._ranks)} ranks and a global batch of "
                f"{self._total}: give both for every rank, and the split that was agreed on"
            )


def _slowest_s(costs: Sequence[RankCost], samples: Split) -> float:
    return max(
        cost.fixed_s + cost.per_sample_s * count if count else 0.0 for cost, count in zip(costs, samples, strict=True)
    )
