"""Our search over the joint space: predictions corrected by measurements, with Optuna's proposals among the candidates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.results.judge.selection import by_speed, fastest
from autotune.results.store.record import Role, TrialRecord
from autotune.search.baselines import DefaultDdp
from autotune.search.problem import Problem
from autotune.search.rank_speeds import fit_costs, reference_speeds, worthwhile_split
from autotune.search.set_moves import sets_by_speed
from autotune.search.tuner import SearchOptions
from autotune.space.comm_knobs import SIZE, TRANSPORT
from autotune.space.compression_knobs import CODEC, NARROW
from autotune.space.rank_sets import RankSets
from autotune.space.space import Proposal, Space
from autotune.space.split_points import is_coordinate as is_split_coordinate
from autotune.workloads.plan import Plan
from autotune.workloads.split import RankCost, even

if TYPE_CHECKING:
    from autotune.search.optuna_study import SearchStudy
    from autotune.search.ranking import Ranking
    from autotune.simulate.simulator import Simulator

_CONFIRMED = 3
_CONFIRM_FROM = 8
"""A shorter search has no trials to spare for measuring twice."""
_MEASURED_TWICE = 2
_LEAST_SEARCHED = 6
"""Before so many trials the search does not end by itself."""
_OPTUNA_PROPOSES = 16
LEAST_GAIN = 0.005
"""What a measurement cannot tell from noise is not worth one."""


class GuidedSearch:
    """Our search: the default first, then the plans that predictions, corrected by measurements, call for (`search.ranking`).

    Where nothing can be predicted: a few openings, then alternately a step from the best plan so far and a proposal of Optuna's,
    with the split that the measured speeds call for. The last trials of a budget measure the best plans once more: the fastest
    of many noisy trials owes part of it to luck.
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
        self._study: SearchStudy | None = None
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
        if self._study is None:
            self._study, self._space = self._open(records)
        costs = fit_costs(records)
        if self._options.sampler == "random" or (costs is None and self._simulator is None):
            return self._study.ask()
        samples = self._split(costs, self._space)
        if self._simulator is None:
            return self._from_experience(self._study, records, samples)
        others = [self._split(costs, self._space.among(ranks)) for ranks in self._space.rank_sets.sets]
        chosen = self._from_predictions(self._study, self._simulator, records, (samples, *others))
        return chosen or self._confirm(records)

    def _split(self, costs: Sequence[RankCost] | None, space: Space) -> tuple[int, ...]:
        """Before anything has run, as where the whole model fits no device, an even one."""
        if costs is None:
            return even(space.global_batch, space.limits)
        return worthwhile_split(costs, space)

    def choice(self, records: Sequence[TrialRecord]) -> TrialRecord | None:
        searched = [record for record in records if record.role is Role.SEARCH]
        ranking = self._ranking_of(self._simulator) if self._simulator is not None else None
        final = ranking.final(searched) if ranking is not None else fastest(searched)
        return final or fastest(records)

    def _ranking_of(self, simulator: Simulator) -> Ranking:
        if self._ranking is None:
            from autotune.search.ranking import Ranking  # noqa: PLC0415 - rank 0's alone

            self._ranking = Ranking(simulator, self._space)
        return self._ranking

    def _from_predictions(
        self,
        study: SearchStudy,
        simulator: Simulator,
        records: Sequence[TrialRecord],
        splits: tuple[tuple[int, ...], ...],
    ) -> Proposal | None:
        """The plan that predictions call for; None where none promises more than noise. `splits`: of all ranks, and of each set."""
        searched = sum(record.role is Role.SEARCH for record in records)
        best = fastest(records, Role.SEARCH)
        choice = self._ranking_of(simulator).choose(
            records,
            splits[0],
            best.plan if best else None,
            study.proposals(_OPTUNA_PROPOSES),
            explore=searched % 2 == 1,
            others=splits[1:],
        )
        if choice is None or (searched >= _LEAST_SEARCHED and choice.gain < LEAST_GAIN):
            return None
        return self._proposed(choice.plan)

    def _proposed(self, plan: Plan) -> Proposal:
        """The plan itself, and its coordinates, from which the sampler learns afterwards."""
        return Proposal(plan=plan, params=self._space.point(plan))

    def _confirm(self, records: Sequence[TrialRecord]) -> Proposal | None:
        """Nothing promises more: the best plans once more, unless they have been, and that is all."""
        doubtful = least_measured(records)
        if doubtful is not None and sum(record.plan == doubtful for record in records) < _MEASURED_TWICE:
            return Proposal(plan=doubtful)
        self.enough = "no other plan promises more than noise"
        return None

    def _from_experience(
        self, study: SearchStudy, records: Sequence[TrialRecord], samples: tuple[int, ...]
    ) -> Proposal | None:
        """Alternates between a neighbour of the best plan and the sampler's own choice, with this split in three of four."""
        searched = [record for record in records if record.role is Role.SEARCH]
        measured = {record.plan for record in records}
        first, best = openings(self._space), fastest(searched)
        if len(searched) < len(first):
            points = [first[len(searched)]]
        elif len(searched) % 2 and best is not None:
            points = neighbours(best.plan, self._space)
        else:
            points = []
        plans = (self._space.with_knobs(samples, point) for point in points)
        if (plan := next((plan for plan in plans if plan not in measured), None)) is not None:
            return self._proposed(plan)
        return study.ask(samples if len(searched) % 4 else None)

    def _is_near_the_end(self, records: Sequence[TrialRecord]) -> bool:
        trials = self._options.trials
        if trials is None or trials < _CONFIRM_FROM:
            return False
        return trials - sum(record.role is Role.SEARCH for record in records) <= _CONFIRMED

    def tell(self, record: TrialRecord) -> None:
        if record.params:
            assert self._study is not None
            self._study.tell(record)

    def _open(self, records: Sequence[TrialRecord]) -> tuple[SearchStudy, Space]:
        from autotune.search.optuna_study import SearchStudy  # noqa: PLC0415 - Optuna is rank 0's alone

        options = self._options
        speeds = reference_speeds(self._problem, records)
        space = self._problem.space(speeds, allow_lossy=options.allow_lossy)
        if self._simulator is None and not space.rank_sets.sets:
            by_speed_only = RankSets(sets=tuple(sets_by_speed(self._problem.cluster, speeds)))
            space = replace(space, rank_sets=by_speed_only)
        return SearchStudy(self._storage, space, records, sampler=options.sampler, seed=options.seed), space


def make_guided(
    problem: Problem, options: SearchOptions, storage: Path | None, simulator: Simulator | None
) -> GuidedSearch:
    """As `--sampler tpe` and `--sampler random`."""
    return GuidedSearch(problem, options, storage, simulator=simulator)


def openings(space: Space) -> list[dict[str, Any]]:
    """What to try first: the narrowest codec allowed, middling buckets, every transport once; all else the plainest there is,
    since what is left to chance may need a transport of its own.
    """
    plainest = {name: values.first for name, values in space.coordinates().items() if values.choices}
    codec = NARROW if NARROW in space.codecs else space.codecs[0]
    middle, small = min(20, space.max_bucket_log2), min(18, space.max_bucket_log2)
    first, *others = space.transports
    points = [(middle, first), *((small, transport) for transport in others), (small, first)]
    return [plainest | {SIZE.name: size, CODEC.name: codec, TRANSPORT.name: transport} for size, transport in points]


def neighbours(plan: Plan, space: Space) -> list[dict[str, Any]]:
    """The knobs of a plan with one of them a step away: numbers by one and two, then the other choices."""
    there = {name: values for name, values in space.coordinates().items() if not is_split_coordinate(name)}
    here = {name: value for name, value in space.point(plan).items() if name in there}
    numbers = {name: values for name, values in there.items() if not values.choices}
    for name, values in numbers.items():
        here[name] = min(max(here[name], int(values.low)), int(values.high))
    near = [
        here | {name: here[name] + step}
        for name, values in numbers.items()
        for step in (-1, 1, -2, 2)
        if values.low <= here[name] + step <= values.high
    ]
    near += [
        here | {name: choice} for name, values in there.items() for choice in values.choices if choice != here[name]
    ]
    return [here, *near]


def least_measured(records: Sequence[TrialRecord]) -> Plan | None:
    """Of the best plans, the one that was measured least."""
    best = [record.plan for record in by_speed(records)[:_CONFIRMED]]
    counts = Counter(record.plan for record in records)
    return min(best, key=lambda plan: counts[plan], default=None)
