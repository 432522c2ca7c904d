"""What people do today without us: torch DDP with its defaults, DDP tuned with care, Optuna on DDP's knobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.results.judge.selection import default_record
from autotune.results.store.record import DDP_DEFAULT, DDP_TUNED, Role, TrialRecord
from autotune.search.problem import Problem
from autotune.search.rank_speeds import reference_speeds
from autotune.search.tuner import ByTrials
from autotune.space.space import Proposal
from autotune.workloads.plan import MIB, BatchPlan, CompressionPlan, Plan, default_plan
from autotune.workloads.split import even, proportional

if TYPE_CHECKING:
    from autotune.search.optuna_plain import PlainStudy

TUNED_BUCKETS_BYTES = (*(2**log2 for log2 in range(16, 24)), 25 * MIB)
"""Bucket sizes tried for DDP with a proportional split: every power of two that matters, and DDP's own."""


def tuned_buckets_bytes(param_bytes: int) -> tuple[int, ...]:
    """The sizes that make different buckets of so many bytes of gradients: those below, and DDP's own."""
    *sizes, default = TUNED_BUCKETS_BYTES
    return (*(size for size in sizes if size < param_bytes), default)


class DefaultDdp(ByTrials):
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

    def tell(self, record: TrialRecord) -> None:
        """It has one proposal."""


class TunedDdp(ByTrials):
    """DDP as a careful user tunes it: the default shows the speeds, then samples in proportion, several bucket sizes."""

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
        default = default_record(records)
        if default is None:
            return self._default.propose(records)
        if default.step_s is None:
            return None
        measured = {record.plan.fingerprint() for record in records}
        return next(
            (Proposal(plan=p, role=Role.PEER) for p in self._plans(default) if p.fingerprint() not in measured), None
        )

    def tell(self, record: TrialRecord) -> None:
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
