"""Batches that follow the devices: from what the ranks' steps took, when to divide the batch otherwise, and how.

The idea is DBS' (arXiv 2007.11831): samples in proportion to speed. What is different here: it acts after a few steps, not
epochs; times are lines with a fixed part; the split is the exact optimum in whole samples under memory caps; it moves only for
a gain that is larger than noise; and it is checked afterwards. A move that does not bring what was promised is taken back:
ranks report their own times, and one that reports too little would otherwise be given more and more, while every step waits
for it. What tells is the time of a step that no rank's report explains: step - max(compute). It is what communication takes,
and it must not grow because samples have moved.

Pure data in, data out; `observe` after each step, `propose` when a move could be made. All times are the caller's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from autotune.online.rank_cost import RankCostModel, Sensitivity
from workloads.errors import SpecError
from workloads.split import Bounds, balanced


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """Another split, and why."""

    samples: tuple[int, ...]
    predicted_gain: float
    """Share of the step time that it is expected to save."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Caution:
    """When to move, and when to regret it."""

    settle: int = 3
    """Steps to be seen after a start or a move before the next is thought of."""
    least_gain: float = 0.02
    """Of the step time. A move costs what was fetched ahead."""
    spreads: float = 3.0
    """A gain must also be this many standard errors of the ranks' times."""
    kept_gain: float = 0.5
    """A move is taken back if the time nobody explains grew by more than this share of what was promised (or of `least_gain`,
    where that is more)."""
    patience: int = 20
    """Steps that a move may take to be carried out, and the first pause after one that was taken back; each further pause is
    twice as long."""
    sensitivity: Sensitivity = field(default_factory=Sensitivity)


_DEFAULT = Caution()
_MEDIAN_TO_MEAN = 1.2533
"""Standard error of a median over that of a mean."""


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
    """A move that has been proposed, until it has shown what it is worth."""

    move: Move
    before: tuple[int, ...]
    proposed_at: int
    step_s: float
    unexplained_s: float
    """As they were before it."""


class BatchController:
    """Watches one job."""

    def __init__(self, limits: Bounds, global_batch: int, caution: Caution = _DEFAULT) -> None:
        limits.check(global_batch)
        self._limits, self._total, self._caution = limits, global_batch, caution
        self._ranks = [RankCostModel(caution.sensitivity) for _ in limits.caps]
        self._seen: deque[_Seen] = deque(maxlen=caution.sensitivity.memory)
        """Under the present split."""
        self._work_per_sample: deque[float] = deque(maxlen=caution.sensitivity.memory)
        self._trial: _Trial | None = None
        self._pause_until = 0
        self._num_regrets = 0

    @property
    def imbalance(self) -> float | None:
        """How much longer the slowest rank computes than the mean, max/mean - 1, over the last steps; None before the first."""
        if not self._seen:
            return None
        recent = list(self._seen)[-self._caution.settle :]
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
        """What a step was: samples of each rank, the time each has computed (not waited), and what the step took in all.

        `work`: of each rank, where samples are of unequal work. `samples` is the split that held, not that of a short last batch:
        leave such a step out, or give its work.
        """
        self._check(samples, compute_s)
        done = [min(seconds, step_s) for seconds in compute_s]  # nobody computes longer than a step takes
        amounts = [float(count) for count in samples] if work is None else list(work)
        changed = [model.observe(w, t) for model, w, t in zip(self._ranks, amounts, done, strict=True)]
        if self._seen and self._seen[-1].samples != tuple(samples):
            self._seen.clear()
        if any(changed):
            self._pause_until = min(self._pause_until, step)  # whatever was wrong before may be right now
            while len(self._seen) >= self._caution.sensitivity.steps:
                self._seen.popleft()
        self._work_per_sample.append(sum(amounts) / self._total)
        self._seen.append(_Seen(samples=tuple(samples), compute_s=tuple(done), step_s=step_s))

    def propose(self, step: int) -> Move | None:
        """A better split from what was seen up to `step`, or the one before the last if that did not keep its promise."""
        if not self._seen:
            return None
        if self._trial is not None:
            return self._judge(step, self._trial)
        if len(self._seen) < self._caution.settle or step < self._pause_until:
            return None
        move = self._best_move()
        if move is not None:
            now = self._seen[-1].samples
            self._trial = _Trial(
                move=move,
                before=now,
                proposed_at=step,
                step_s=median(seen.step_s for seen in self._seen),
                unexplained_s=median(seen.unexplained_s for seen in self._seen),
            )
        return move

    def _best_move(self) -> Move | None:
        if any(model.num_steps == 0 for model in self._ranks):
            return None  # a rank that never had work: nobody knows what it would take
        now = self._seen[-1].samples
        per_sample = median(self._work_per_sample)
        found = balanced([model.cost(per_sample) for model in self._ranks], self._total, self._limits)
        rest_s = max(median(seen.unexplained_s for seen in self._seen), 0.0)
        before_s, after_s = (self._slowest_s(split, per_sample) + rest_s for split in (now, found))
        gain = 1 - after_s / before_s
        if gain < max(self._caution.least_gain, self._caution.spreads * self._error()):
            return None
        slowest = max(range(len(now)), key=lambda rank: self._ranks[rank].predict_s(now[rank] * per_sample))
        reason = f"rank {slowest} takes {100 * gain:.0f} % of a step longer than it need"
        return Move(samples=found, predicted_gain=gain, reason=reason)

    def _judge(self, step: int, trial: _Trial) -> Move | None:
        """Whether the last move has brought what it promised, once it has been carried out for some steps."""
        if self._seen[-1].samples != trial.move.samples:
            if step > trial.proposed_at + self._caution.patience:
                self._trial = None  # nobody carried it out
            return None
        if len(self._seen) < self._caution.settle:
            return None
        self._trial = None
        unexplained_s = median(seen.unexplained_s for seen in self._seen)
        promised = max(trial.move.predicted_gain, self._caution.least_gain)
        grown = (unexplained_s - trial.unexplained_s) / trial.step_s
        if grown <= max(self._caution.kept_gain * promised, self._caution.spreads * self._error()):
            if grown <= 0:
                self._num_regrets = 0
            return self.propose(step)
        step_s = median(seen.step_s for seen in self._seen)
        if step_s <= trial.step_s * (1 - trial.move.predicted_gain * (1 - self._caution.kept_gain)):
            return None  # faster all the same
        return self._regret(step, trial, step_s)

    def _regret(self, step: int, trial: _Trial, step_s: float) -> Move:
        self._pause_until = step + self._caution.patience * 2**self._num_regrets
        self._num_regrets += 1
        promised_s = trial.step_s * (1 - trial.move.predicted_gain)
        return Move(
            samples=trial.before,
            predicted_gain=1 - trial.step_s / step_s,
            reason=f"steps take {step_s / promised_s:.2f} times what the ranks' reported times promised: back to the last split",
        )

    def _slowest_s(self, samples: Sequence[int], per_sample: float) -> float:
        return max(model.predict_s(count * per_sample) for model, count in zip(self._ranks, samples, strict=True))

    def _error(self) -> float:
        """Standard error of the least certain rank's time, as a share of it."""
        return max(_MEDIAN_TO_MEAN * model.spread / math.sqrt(model.num_steps) for model in self._ranks)

    def _check(self, samples: Sequence[int], compute_s: Sequence[float]) -> None:
        if not len(samples) == len(compute_s) == len(self._ranks) or sum(samples) != self._total:
            raise SpecError(
                f"samples {list(samples)} and {len(compute_s)} compute times for {len(self._ranks)} ranks and a global batch of "
                f"{self._total}: give both for every rank, and the split as it was agreed on"
            )
