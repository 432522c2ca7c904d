"""Batches that follow the devices: from what the ranks' steps took, when to divide the batch otherwise, and how.

The idea is DBS' (arXiv 2007.11831): samples in proportion to speed. What is different here: it acts after a few steps, not
epochs; times are lines with a fixed part; the split is the exact optimum in whole samples under memory caps; it moves only for
a gain that is larger than noise; and it is checked afterwards. A move that does not bring what was promised is taken back:
ranks report their own times, and one that reports too little would otherwise be given more and more, while every step waits
for it. What tells is the time of a step that no rank's report explains: step - max(compute). It is what communication takes,
and it must not grow because samples have moved.

A rank that comes and goes faster than samples can follow must not be followed. From the times of a step it can be told what
any split would have taken. So it is known what following every change, one step behind, has taken or would have, and whether
a single split would have done better in all of the last steps together; if so, that one is kept for as long as it would.

Pure data in, data out; `observe` after each step, `propose` when a move could be made. All times are the caller's.
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
    """Another split, and why."""

    samples: tuple[int, ...]
    predicted_gain: float
    """Share of the step time that it is expected to save."""
    reason: str
    ranks: tuple[int, ...] = ()
    """Those that have changed since the last move."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Caution:
    """When to move, and when to regret it."""

    first: int = 5
    """Steps to be seen before the first move: until then nobody knows how much ranks scatter."""
    flush: int = 3
    """Steps to be seen after a move before it is judged."""
    least_gain: float = 0.01
    """Of the step time. A move costs what was fetched ahead."""
    spreads: float = 3.0
    """A gain must also be this many standard errors of the ranks' times."""
    kept_gain: float = 0.5
    """A move is taken back if the time nobody explains grew by more than this share of what was promised (or of `least_gain`,
    where that is more), and by more than its own scatter."""
    patience: int = 20
    """Steps that a move may take to be carried out, and the first pause after one that was taken back; each further pause is
    twice as long."""
    look_back: int = 32
    """Steps in which following is held against a single split."""
    held_gain: float = 0.01
    """What a single split must have saved."""
    comes_and_goes: int = 4
    """In so many of those steps a rank must have changed for that to be asked."""
    sensitivity: Sensitivity = field(default_factory=Sensitivity)


_DEFAULT = Caution()
_QUANTILES = (0.5, 0.75, 1.0)
"""Splits that are tried for many steps at once: as if ranks always were as slow as in this share of the steps."""
_HICCUPS = 24
"""One step in so many may be a hiccup."""
_UNCHANGED = 0.02
"""A rank that went and came back within this is as it was."""
_MEDIAN_TO_MEAN = 1.2533
"""Standard error of a median over that of a mean."""
_JUMP_TO_SPREAD = 1.0483
"""Standard deviation of what scatters normally over the median difference of neighbours."""


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
        self._num_steps = 0
        self._followed: Split = ()
        """The split that follows every change, whether it is in force or not."""
        self._followed_s: deque[float] = deque(maxlen=caution.look_back)
        """What the last steps took by it, or would have."""
        self._done: deque[list[tuple[float, float]]] = deque(maxlen=caution.look_back)
        """Work and time of each rank in the last steps."""
        self._unexplained_s: deque[float] = deque(maxlen=caution.look_back)
        """Of the last steps, whatever their split."""
        self._changed_in: deque[int] = deque(maxlen=caution.look_back)
        """Steps in which a rank changed."""
        self._trial: _Trial | None = None
        self._pause_until = 0
        self._num_regrets = 0
        self._changes: dict[int, float] = {}
        """Ranks that have changed since the last move, and how many times as long they take."""

    @property
    def imbalance(self) -> float | None:
        """How much longer the slowest rank computes than the mean, max/mean - 1, over the last steps; None before the first."""
        if not self._seen:
            return None
        recent = list(self._seen)[-self._caution.flush :]
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
        changed = self._note_changes(amounts, done)
        if self._seen and self._seen[-1].samples != tuple(samples):
            self._seen.clear()
        if changed:
            self._changed_in.append(self._num_steps)
            self._pause_until = min(self._pause_until, step)  # whatever was wrong before may be right now
            self._trial = None  # and what was promised is no measure any more
            while len(self._seen) >= self._caution.sensitivity.steps:
                self._seen.popleft()
        self._num_steps += 1
        self._work_per_sample.append(sum(amounts) / self._total)
        self._seen.append(_Seen(samples=tuple(samples), compute_s=tuple(done), step_s=step_s))
        self._unexplained_s.append(self._seen[-1].unexplained_s)
        self._keep_account(tuple(samples), amounts, done)

    def _note_changes(self, work: list[float], compute_s: list[float]) -> bool:
        """Tell every rank's model of a step; whether any rank turns out to have changed."""
        before = [model.unit_s if model.num_steps else None for model in self._ranks]
        changed = [model.observe(w, t) for model, w, t in zip(self._ranks, work, compute_s, strict=True)]
        if any(changed):  # changes come together
            changed = [
                found or (w > 0 and model.reconsider())
                for found, model, w in zip(changed, self._ranks, work, strict=True)
            ]
        for rank, (found, unit_s) in enumerate(zip(changed, before, strict=True)):
            if found and unit_s is not None:
                self._changes[rank] = self._changes.get(rank, 1.0) * self._ranks[rank].unit_s / unit_s
        return any(changed)

    def _take_changes(self) -> tuple[tuple[int, ...], str]:
        """Ranks that have changed since this was last asked, and a clause that says how."""
        changes, self._changes = self._changes, {}
        lasting = {rank: ratio for rank, ratio in changes.items() if abs(math.log(ratio)) > _UNCHANGED}
        said = ", ".join(f"rank {rank} takes {ratio:.2f} times as long as before" for rank, ratio in lasting.items())
        return tuple(lasting), f"{said}; " if said else ""

    def _keep_account(self, samples: Split, work: list[float], compute_s: list[float]) -> None:
        """What the step would have taken if every change were followed."""
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
        """A better split from what was seen up to `step`, or the one before the last if that did not keep its promise."""
        if not self._seen:
            return None
        if self._trial is not None:
            return self._judge(step, self._trial)
        if any(model.num_steps == 0 for model in self._ranks):
            return None  # a rank that never had work: nobody knows what it would take
        target = self._better_way()
        if self._num_steps < self._caution.first or step < self._pause_until:
            return None
        return self._move_to(step, target)

    def _better_way(self) -> Split:
        """The split that follows what is known now, or the single one that would have been better than to follow."""
        per_sample = median(self._work_per_sample)
        costs = [model.cost(per_sample) for model in self._ranks]
        found = balanced(costs, self._total, self._limits)
        before_s, after_s = (_slowest_s(costs, split) + self._rest_s() for split in (self._followed, found))
        if 1 - after_s / before_s >= self._least_gain():
            self._followed = found
        if (
            sum(self._num_steps - step < self._caution.look_back for step in self._changed_in)
            < self._caution.comes_and_goes
        ):
            return self._followed  # nobody comes and goes
        single, taken_s = self._best_single(per_sample)
        followed_s = self._mean_step_s(self._followed_s)
        return single if taken_s < (1 - self._caution.held_gain) * followed_s else self._followed

    def _best_single(self, per_sample: float) -> tuple[Split, float]:
        """The split that the last steps together would have taken least with, and what one would have taken."""
        tried, units_s = {self._seen[-1].samples}, self._units_s()
        ordered_s = [sorted(each) for each in zip(*units_s, strict=True)]
        for quantile in _QUANTILES:
            units = [each[int(quantile * (len(each) - 1))] for each in ordered_s]
            costs = [model.cost(per_sample, unit) for model, unit in zip(self._ranks, units, strict=True)]
            tried.add(balanced(costs, self._total, self._limits))
        taken_s = {split: self._would_have_taken_s(split, per_sample, units_s) for split in tried}
        best = min(taken_s, key=lambda split: taken_s[split])
        return best, taken_s[best]

    def _would_have_taken_s(self, samples: Split, per_sample: float, units_s: Sequence[Sequence[float]]) -> float:
        """One of the last steps, by this split."""
        weights = [
            cost.fixed_s + cost.per_sample_s * n for cost, n in zip(self._unit_costs(per_sample), samples, strict=True)
        ]
        return self._mean_step_s(max(map(mul, units, weights)) for units in units_s)

    def _units_s(self) -> list[list[float]]:
        """What a unit of work took on each rank in each of the last steps."""
        return [[model.units_of(w, t) for model, (w, t) in zip(self._ranks, done, strict=True)] for done in self._done]

    def _mean_step_s(self, slowest_s: Iterable[float]) -> float:
        """Of steps with these compute times; the few longest are left out, lest one hiccup decides."""
        ordered = sorted(slowest_s)
        return fmean(ordered[: len(ordered) - len(ordered) // _HICCUPS]) + self._rest_s()

    def _unit_costs(self, per_sample: float) -> list[RankCost]:
        """As if a unit took a second."""
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
            reason = f"rank {slowest} takes {100 * gain:.0f} % of a step longer than it need"
        else:
            units_s = self._units_s()
            before_s, after_s = (self._would_have_taken_s(split, per_sample, units_s) for split in (now, target))
            gain = 1 - after_s / before_s
            reason = f"rank {slowest} comes and goes too fast to be followed"
        if gain < self._least_gain():
            return None
        ranks, said = self._take_changes()
        move = Move(samples=target, predicted_gain=gain, reason=said + reason, ranks=ranks)
        self._trial = _Trial(
            move=move,
            before=now,
            proposed_at=step,
            step_s=median(seen.step_s for seen in self._seen),
            unexplained_s=median(seen.unexplained_s for seen in self._seen),
        )
        return move

    def _rest_s(self) -> float:
        """What a step takes beyond computing."""
        return max(median(seen.unexplained_s for seen in self._seen), 0.0)

    def _least_gain(self) -> float:
        return max(self._caution.least_gain, self._caution.spreads * self._error())

    def _judge(self, step: int, trial: _Trial) -> Move | None:
        """Whether the last move has brought what it promised, once it has been carried out for some steps."""
        if self._seen[-1].samples != trial.move.samples:
            if step > trial.proposed_at + self._caution.patience:
                self._trial = None  # nobody carried it out
            return None
        if len(self._seen) < self._caution.flush:
            return None
        self._trial = None
        unexplained_s = median(seen.unexplained_s for seen in self._seen)
        promised = max(trial.move.predicted_gain, self._caution.least_gain)
        grown = (unexplained_s - trial.unexplained_s) / trial.step_s
        noise = max(self._error(), self._unexplained_error_s() / trial.step_s)
        if grown <= max(self._caution.kept_gain * promised, self._caution.spreads * noise):
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

    def _error(self) -> float:
        """Standard error of the least certain rank's time, as a share of it."""
        return max(_MEDIAN_TO_MEAN * model.spread / math.sqrt(model.num_steps) for model in self._ranks)

    def _unexplained_error_s(self) -> float:
        """Standard error of the median over the steps that a move is judged by; told from neighbours, since levels may change."""
        jumps_s = [abs(after_s - before_s) for before_s, after_s in pairwise(self._unexplained_s)]
        return _MEDIAN_TO_MEAN * _JUMP_TO_SPREAD * median(jumps_s) / math.sqrt(self._caution.flush)

    def _check(self, samples: Sequence[int], compute_s: Sequence[float]) -> None:
        if not len(samples) == len(compute_s) == len(self._ranks) or sum(samples) != self._total:
            raise SpecError(
                f"samples {list(samples)} and {len(compute_s)} compute times for {len(self._ranks)} ranks and a global batch of "
                f"{self._total}: give both for every rank, and the split as it was agreed on"
            )


def _slowest_s(costs: Sequence[RankCost], samples: Split) -> float:
    return max(
        cost.fixed_s + cost.per_sample_s * count if count else 0.0 for cost, count in zip(costs, samples, strict=True)
    )
