"""What people do today without us: torch DDP with its defaults, DDP tuned with care, Optuna on DDP's knobs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.results.judge.selection import default_record, fastest
from autotune.results.store.record import DDP_DEFAULT, DDP_TUNED, Role, TrialRecord, TrialState
from autotune.search.problem import Problem
from autotune.search.rank_speeds import fit_costs, reference_speeds
from autotune.search.set_moves import sets_by_speed
from autotune.search.tuner import ByTrials
from autotune.space.rank_sets import among
from autotune.space.space import Proposal
from autotune.workloads.plan import MIB, BatchPlan, CompressionPlan, Plan, default_plan
from autotune.workloads.split import even, proportional

if TYPE_CHECKING:
    from autotune.search.optuna_plain import PlainStudy

TUNED_BUCKETS_BYTES = (*(2**log2 for log2 in range(16, 24)), 25 * MIB)
"""Bucket sizes tried for DDP with a proportional split: every power of two that matters, and DDP's own."""


_MOST_TRIES = 3
"""Of the default, where it fails: all that follows rests on it, and a fault may pass."""


def tuned_buckets_bytes(param_bytes: int) -> tuple[int, ...]:
    """The sizes that make different buckets of so many bytes of gradients: those below, and DDP's own."""
    *sizes, default = TUNED_BUCKETS_BYTES
    return (*(size for size in sizes if size < param_bytes), default)


def num_baselines(problem: Problem) -> int:
    """Trials of the default and of tuned DDP, of which mostly one leaves devices out where they are unlike."""
    has_sets = bool(sets_by_speed(problem.cluster, (1.0,) * problem.num_ranks))
    return 1 + len(tuned_buckets_bytes(problem.param_bytes)) + has_sets


class DefaultDdp(ByTrials):
    """Torch DDP with its defaults and an even split, whatever the devices hold: what people run before tuning."""

    name = DDP_DEFAULT
    is_lossless = True

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def propose(self, records: Sequence[TrialRecord]) -> Proposal | None:
        tried = [record for record in records if record.role is Role.DEFAULT]
        if len(tried) == _MOST_TRIES or any(record.state is not TrialState.FAILED for record in tried):
            return None
        total, limits = self._problem.global_batch, self._problem.limits
        no_caps = dataclasses.replace(limits, caps=(total,) * len(limits.caps))
        plan = default_plan(even(total, no_caps), transport=self._problem.transports[0])
        return Proposal(plan=plan, role=Role.DEFAULT)

    def tell(self, record: TrialRecord) -> None:
        """It has one proposal."""


class TunedDdp(ByTrials):
    """DDP as a careful user tunes it: the default shows the speeds, then samples in proportion, several bucket sizes.

    First, slow devices and those behind slow links are left out, where the others alone could be faster than the best so far; then
    bucket sizes are tried on the best of these.
    """

    def __init__(
        self,
        problem: Problem,
        buckets_bytes: Sequence[int] | None = None,
        *,
        codec: str = "none",
        name: str = DDP_TUNED,
    ) -> None:
        self._problem = problem
        self._buckets_bytes = buckets_bytes or tuned_buckets_bytes(problem.param_bytes)
        self._compression = CompressionPlan(codec=codec)
        self._default = DefaultDdp(problem)
        self.name = name
        self.is_lossless = codec == "none"

    def propose(self, records: Sequence[TrialRecord]) -> Proposal | None:
        if (proposal := self._default.propose(records)) is not None:
            return proposal
        default = default_record(records)
        if default is None or default.step_s is None:
            return None
        measured = {record.plan.fingerprint() for record in records}
        plans = [*self._of_sets(default, records), *self._of_sizes(default, records)]
        return next(
            (Proposal(plan=plan, role=Role.PEER) for plan in plans if plan.fingerprint() not in measured),
            None,
        )

    def tell(self, record: TrialRecord) -> None:
        """The list of sizes is fixed beforehand."""

    def _of_sets(self, default: TrialRecord, records: Sequence[TrialRecord]) -> list[Plan]:
        """With DDP's own bucket size: all ranks, then sets that compute faster than the best so far ran; none if no set does."""
        costs = fit_costs([default])
        assert costs is not None
        of_all = self._plan(default, self._split(default, None), self._buckets_bytes[-1])
        sets = sets_by_speed(self._problem.cluster, reference_speeds(self._problem, [default]))
        steps = {record.plan.fingerprint(): record.step_s for record in records}
        least_s = min(default.step_s or math.inf, steps.get(of_all.fingerprint()) or math.inf)
        found: list[Plan] = []
        for ranks in sets:
            samples = self._split(default, ranks)
            compute_s = max(costs[rank].fixed_s + costs[rank].per_sample_s * samples[rank] for rank in ranks)
            plan = self._plan(default, samples, self._buckets_bytes[-1])
            if compute_s < least_s:
                found.append(plan)
            least_s = min(least_s, steps.get(plan.fingerprint()) or math.inf)
        return [of_all, *found] if found else []

    def _of_sizes(self, default: TrialRecord, records: Sequence[TrialRecord]) -> list[Plan]:
        """Every bucket size, on the ranks with which DDP was fastest."""
        own = (default.plan.comm.transport, self._buckets_bytes[-1], self._compression)
        peers = [record for record in records if record.role is Role.PEER]
        best = fastest([one for one in peers if _size_of(one.plan) == own])
        samples = best.plan.batch.samples if best is not None else self._split(default, None)
        return [self._plan(default, samples, size) for size in self._buckets_bytes]

    def _split(self, default: TrialRecord, ranks: tuple[int, ...] | None) -> tuple[int, ...]:
        problem = self._problem
        limits = problem.limits if ranks is None else among(problem.limits, ranks)
        return proportional(reference_speeds(problem, [default]), problem.global_batch, limits)

    def _plan(self, default: TrialRecord, samples: tuple[int, ...], bucket_bytes: int) -> Plan:
        return Plan(
            batch=BatchPlan(samples=samples),
            comm=dataclasses.replace(default.plan.comm, bucket_bytes=bucket_bytes),
            compression=self._compression,
        )


def _size_of(plan: Plan) -> tuple[str, int, CompressionPlan]:
    return plan.comm.transport, plan.comm.bucket_bytes, plan.compression


class PlainOptuna(ByTrials):
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

    def tell(self, record: TrialRecord) -> None:
        assert self._study is not None
        self._study.tell(record)
