"""Who proposes plans. Each way of tuning is one small class: ours, and what people do today without us.

A tuner hears of every trial that it proposed and is asked again, until it has nothing more to propose or its budget is
used. A sweep runs two of them on one study; a race gives each its own trials and the same number of training steps.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from autotune.results.judge.selection import by_speed, default_record, fastest
from autotune.results.store.record import DDP_DEFAULT, DDP_TUNED, Role, TrialRecord
from autotune.search.guided import fit_costs, neighbours, openings, relative_speeds
from autotune.search.problem import Problem
from autotune.simulate.limit import stated_sample_s
from autotune.space.space import Proposal, Space
from autotune.workloads.plan import MIB, BatchPlan, CompressionPlan, Plan, default_plan
from autotune.workloads.split import RankCost, balanced, even, proportional

if TYPE_CHECKING:
    from autotune.search.optuna_plain import PlainStudy
    from autotune.search.optuna_study import Search
    from autotune.search.ranking import Ranking
    from autotune.simulate.simulator import Simulator

TUNED_BUCKETS_BYTES = (*(2**log2 for log2 in range(16, 24)), 25 * MIB)
"""Bucket sizes tried for DDP with a proportional split: every power of two that matters, and DDP's own."""


_CONFIRMED = 3
_CONFIRM_FROM = 8
"""A shorter search has no trials to spare for measuring twice."""
_MEASURED_TWICE = 2
_LEAST_SEARCHED = 6
"""Before so many trials the search does not believe that it has seen enough."""
_OPTUNA_PROPOSES = 16
_SPLIT_NOISE = 0.03
LEAST_GAIN = 0.005
"""What a measurement cannot tell from noise is not worth one."""


class Tuner(Protocol):
    """Proposes plans, one at a time."""

    name: str
    is_lossless: bool
    enough: str
    """Why it had nothing more to propose; empty where there is nothing to say."""

    def propose(self, records: Sequence[TrialRecord]) -> Proposal | None:
        """The next plan to measure, given the trials so far; None: no more."""

    def heard(self, record: TrialRecord) -> None:
        """What became of the last proposal."""

    def choice(self, records: Sequence[TrialRecord]) -> TrialRecord | None:
        """A trial of the plan that it stands for in the end."""


class _ByTrials:
    """Stands for the plan with the fastest trials."""

    enough = ""

    def choice(self, records: Sequence[TrialRecord]) -> TrialRecord | None:
        return fastest(records)


class DefaultDdp(_ByTrials):
    """Torch DDP with its defaults and an even split, whatever the devices hold: what people run before tuning."""

    name = DDP_DEFAULT
    is_lossless = True

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def propose(self, records: Sequence[TrialRecord]) -> Proposal | None:
        if default_record(records) is not None:
            return None
        total, limits = self._problem.global_batch, self._problem.limits
        no_caps = dataclasses.replace(limits, caps=(total,) * len(limits.caps))
        plan = default_plan(even(total, no_caps), transport=self._problem.transports[0])
        return Proposal(plan=plan, role=Role.DEFAULT)

    def heard(self, record: TrialRecord) -> None:
        """It never changes its mind."""


class TunedDdp(_ByTrials):
    """DDP as a careful user tunes it: the default shows the speeds, then samples in proportion, several bucket sizes."""

    def __init__(
        self,
        problem: Problem,
        buckets_bytes: Sequence[int] = TUNED_BUCKETS_BYTES,
        *,
        codec: str = "none",
        name: str = DDP_TUNED,
    ) -> None:
        self._problem = problem
        self._buckets_bytes = buckets_bytes
        self._compression = CompressionPlan(codec=codec)
        self._default = DefaultDdp(problem)
        self.name = name
        self.is_lossless = codec == "none"

    def propose(self, records: Sequence[TrialRecord]) -> Proposal | None:
        default = default_record(records)
        if default is None:
            return self._default.propose(records)
        if default.step_s is None:
            return None
        measured = {record.plan.fingerprint() for record in records}
        return next(
            (Proposal(plan=p, role=Role.PEER) for p in self._plans(default) if p.fingerprint() not in measured), None
        )

    def heard(self, record: TrialRecord) -> None:
        """The list of sizes is fixed beforehand."""

    def _plans(self, default: TrialRecord) -> list[Plan]:
        problem, comm = self._problem, default.plan.comm
        samples = proportional(reference_speeds(problem, [default]), problem.global_batch, problem.limits)
        return [
            Plan(
                batch=BatchPlan(samples=samples),
                comm=dataclasses.replace(comm, bucket_bytes=bucket_bytes),
                compression=self._compression,
            )
            for bucket_bytes in self._buckets_bytes
        ]


class PlainOptuna(_ByTrials):
    """DDP's knobs in an Optuna study, as its documentation shows: no knowledge of devices or links."""

    name = "Optuna on DDP's knobs"
    is_lossless = True

    def __init__(self, problem: Problem, *, seed: int) -> None:
        self._problem, self._seed = problem, seed
        self._study: PlainStudy | None = None

    def propose(self, records: Sequence[TrialRecord]) -> Proposal | None:  # noqa: ARG002 - the study remembers
        if self._study is None:
            from autotune.search.optuna_plain import PlainStudy  # noqa: PLC0415 - Optuna is rank 0's alone

            space = self._problem.space(allow_lossy=False)
            self._study = PlainStudy(space, seed=self._seed)
        return self._study.ask()

    def heard(self, record: TrialRecord) -> None:
        assert self._study is not None
        self._study.tell(record)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions:
    """How to search."""

    sampler: str = "tpe"
    seed: int = 0
    allow_lossy: bool = False
    trials: int | None = None
    """How many there will be, if known beforehand."""


class GuidedSearch:
    """Our search: the default first, then whatever predictions corrected by measurements speak for (`search.ranking`).

    Where nothing can be predicted, a few openings, then in turn a step from the best plan so far and whatever Optuna
    proposes, with the split that the measured speeds call for. The last trials of a budget measure the best plans once
    more: the fastest of many noisy trials owes part of it to luck.
    """

    def __init__(
        self,
        problem: Problem,
        options: SearchOptions,
        storage: Path | None = None,
        *,
        simulator: Simulator | None = None,
        name: str = "autotune",
    ) -> None:
        self._problem, self._options, self._storage = problem, options, storage
        self._default = DefaultDdp(problem)
        self._engine: Search | None = None
        self._space = problem.space(allow_lossy=options.allow_lossy)
        self._simulator = simulator if options.sampler != "random" else None
        self._ranking: Ranking | None = None
        self.name = name
        self.is_lossless = not options.allow_lossy
        self.enough = ""

    def propose(self, records: Sequence[TrialRecord]) -> Proposal | None:
        if (first := self._default.propose(records)) is not None:
            return first
        if self._is_near_the_end(records) and (doubtful := least_measured(records)) is not None:
            return Proposal(plan=doubtful)
        if self._engine is None:
            self._engine, self._space = self._open(records)
        costs = fit_costs(records)
        if self._options.sampler != "random" and (costs is not None or self._simulator is not None):
            samples = self._split(costs)
            if self._simulator is None:
                self._guide(self._engine, self._space, records, samples)
            elif not self._simulate(self._engine, self._simulator, records, samples):
                return self._confirm(records)
        return self._engine.ask()

    def _split(self, costs: Sequence[RankCost] | None) -> tuple[int, ...]:
        """Before anything has run, as where the whole model fits no device, an even one."""
        if costs is None:
            return even(self._space.global_batch, self._space.limits)
        return worthwhile_split(costs, self._space)

    def choice(self, records: Sequence[TrialRecord]) -> TrialRecord | None:
        searched = [record for record in records if record.role is Role.SEARCH]
        ranking = self._ranking_of(self._simulator) if self._simulator is not None else None
        settled = ranking.flush(searched) if ranking is not None else fastest(searched)
        return settled or fastest(records)

    def _ranking_of(self, simulator: Simulator) -> Ranking:
        if self._ranking is None:
            from autotune.search.ranking import Ranking  # noqa: PLC0415 - rank 0's alone

            self._ranking = Ranking(simulator, self._space)
        return self._ranking

    def _simulate(
        self, engine: Search, simulator: Simulator, records: Sequence[TrialRecord], samples: tuple[int, ...]
    ) -> bool:
        """Queue the plan that predictions speak for; False where none promises more than noise."""
        searched = sum(record.role is Role.SEARCH for record in records)
        best = fastest(records, Role.SEARCH)
        choice = self._ranking_of(simulator).choose(
            records, samples, best.plan if best else None, engine.proposals(_OPTUNA_PROPOSES), explore=searched % 2 == 1
        )
        if choice is None or (searched >= _LEAST_SEARCHED and choice.gain < LEAST_GAIN):
            return False
        engine.enqueue_plan(choice.plan)
        return True

    def _confirm(self, records: Sequence[TrialRecord]) -> Proposal | None:
        """Nothing promises more: the best plans once more, unless they have been, and that is all."""
        doubtful = least_measured(records)
        if doubtful is not None and sum(record.plan == doubtful for record in records) < _MEASURED_TWICE:
            return Proposal(plan=doubtful)
        self.enough = "no other plan promises more than noise"
        return None

    def _guide(self, engine: Search, space: Space, records: Sequence[TrialRecord], samples: tuple[int, ...]) -> None:
        """Queue the next trial's split, and its other knobs where experience has something to say."""
        searched = [record for record in records if record.role is Role.SEARCH]
        first, best = openings(space), fastest(searched)
        if len(searched) < len(first):
            engine.enqueue(samples, first[len(searched)])
        elif len(searched) % 2 and best is not None:
            measured = {record.plan.fingerprint() for record in records}
            near = [space.log_shares(samples) | knobs for knobs in neighbours(best.plan, space)]
            engine.enqueue(samples, next((p for p in near if space.plan(p).fingerprint() not in measured), None))
        elif len(searched) % 4:
            engine.enqueue(samples)

    def _is_near_the_end(self, records: Sequence[TrialRecord]) -> bool:
        trials = self._options.trials
        if trials is None or trials < _CONFIRM_FROM:
            return False
        return trials - sum(record.role is Role.SEARCH for record in records) <= _CONFIRMED

    def heard(self, record: TrialRecord) -> None:
        if record.search_number is not None:
            assert self._engine is not None
            self._engine.tell(record)

    def _open(self, records: Sequence[TrialRecord]) -> tuple[Search, Space]:
        from autotune.search.optuna_study import Search  # noqa: PLC0415 - Optuna is rank 0's alone

        options = self._options
        space = self._problem.space(reference_speeds(self._problem, records), allow_lossy=options.allow_lossy)
        return Search(self._storage, space, records, sampler=options.sampler, seed=options.seed), space


def worthwhile_split(costs: Sequence[RankCost], space: Space) -> tuple[int, ...]:
    """The split with the smallest slowest-rank time or, where that is within noise of it, the even one: on equal devices
    measured speeds differ by chance, and following them would unbalance what was balanced.
    """
    total, limits = space.global_batch, space.limits
    plain, best = even(total, limits), balanced(costs, total, limits)

    def slowest_s(samples: tuple[int, ...]) -> float:
        return max(cost.fixed_s + cost.per_sample_s * count for cost, count in zip(costs, samples, strict=True))

    return plain if slowest_s(plain) <= slowest_s(best) * (1 + _SPLIT_NOISE) else best


def least_measured(records: Sequence[TrialRecord]) -> Plan | None:
    """Of the best plans, the one that was measured least."""
    best = [record.plan for record in by_speed(records)[:_CONFIRMED]]
    counts = Counter(record.plan for record in records)
    return min(best, key=lambda plan: counts[plan], default=None)


def reference_speeds(problem: Problem, records: Sequence[TrialRecord]) -> tuple[float, ...]:
    """How fast each rank is: as the default showed; if that could not run, as the cluster file states; else all alike."""
    default = default_record(records)
    if default is not None and (costs := fit_costs([default])) is not None:
        return relative_speeds(costs, default.plan.batch.samples)
    if problem.cluster.is_emulated:
        return tuple(1 / seconds for seconds in stated_sample_s(problem.graph, problem.cluster))
    return (1.0,) * len(problem.cluster.devices)
