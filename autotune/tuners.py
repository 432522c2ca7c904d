"""Who proposes plans. Each way of tuning is one small class: ours, and what people do today without us.

A tuner hears of every trial that it proposed and is asked again, until it has nothing more to propose or its budget is
used. A sweep runs two of them on one study; a race gives each its own trials and the same number of training steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from autotune.bench import Bench
from autotune.contest import default_record
from autotune.search.guide import fit_costs, relative_speeds
from autotune.simulate.limit import stated_sample_s
from autotune.space import Proposal
from results.record import DDP_DEFAULT, DDP_TUNED, Role, TrialRecord
from workloads.plan import MIB, BatchPlan, CompressionPlan, Plan, default_plan
from workloads.split import balanced, even, proportional

if TYPE_CHECKING:
    from autotune.search.plain import PlainStudy
    from autotune.search.study import Search

HAND_BUCKETS_BYTES = (MIB // 4, MIB, 4 * MIB, 25 * MIB)
"""Bucket sizes tried for DDP with a proportional split: what a careful user would try by hand."""


class Tuner(Protocol):
    """Proposes plans, one at a time."""

    name: str
    is_lossless: bool

    def propose(self, records: Sequence[TrialRecord]) -> Proposal | None:
        """The next plan to measure, given the trials so far; None: no more."""

    def heard(self, record: TrialRecord) -> None:
        """What became of the last proposal."""


class DefaultDdp:
    """Torch DDP with its defaults and an even split, whatever the devices hold: what people run before tuning."""

    name = DDP_DEFAULT
    is_lossless = True

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def propose(self, records: Sequence[TrialRecord]) -> Proposal | None:
        if default_record(records) is not None:
            return None
        total, limits = self._bench.info.global_batch, self._bench.limits
        no_caps = dataclasses.replace(limits, caps=(total,) * len(limits.caps))
        plan = default_plan(even(total, no_caps), transport=self._bench.transports[0])
        return Proposal(plan=plan, role=Role.DEFAULT)

    def heard(self, record: TrialRecord) -> None:
        """It never changes its mind."""


class HandTunedDdp:
    """DDP as a careful user tunes it: the default shows the speeds, then samples in proportion, several bucket sizes."""

    def __init__(
        self,
        bench: Bench,
        buckets_bytes: Sequence[int] = HAND_BUCKETS_BYTES,
        *,
        codec: str = "none",
        name: str = DDP_TUNED,
    ) -> None:
        self._bench = bench
        self._buckets_bytes = buckets_bytes
        self._compression = CompressionPlan(codec=codec)
        self._default = DefaultDdp(bench)
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
        bench, comm = self._bench, default.plan.comm
        samples = proportional(reference_speeds(bench, [default]), bench.info.global_batch, bench.limits)
        return [
            Plan(
                batch=BatchPlan(samples=samples),
                comm=dataclasses.replace(comm, bucket_bytes=bucket_bytes),
                compression=self._compression,
            )
            for bucket_bytes in self._buckets_bytes
        ]


class PlainOptuna:
    """DDP's knobs in an Optuna study, as its documentation shows: no knowledge of devices or links."""

    name = "Optuna on DDP's knobs"
    is_lossless = True

    def __init__(self, bench: Bench, *, seed: int) -> None:
        self._bench, self._seed = bench, seed
        self._study: PlainStudy | None = None

    def propose(self, records: Sequence[TrialRecord]) -> Proposal | None:  # noqa: ARG002 - the study remembers
        if self._study is None:
            from autotune.search.plain import PlainStudy  # noqa: PLC0415 - Optuna is rank 0's alone

            space = self._bench.space((1.0,) * len(self._bench.cluster.devices), allow_lossy=False)
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


class GuidedSearch:
    """Our search: the default first, then Optuna over the joint space, every other trial on the split that speeds call for."""

    def __init__(
        self, bench: Bench, options: SearchOptions, storage: Path | None = None, *, name: str = "autotune"
    ) -> None:
        self._bench, self._options, self._storage = bench, options, storage
        self._default = DefaultDdp(bench)
        self._engine: Search | None = None
        self.name = name
        self.is_lossless = not options.allow_lossy

    def propose(self, records: Sequence[TrialRecord]) -> Proposal | None:
        if (first := self._default.propose(records)) is not None:
            return first
        engine = self._engine = self._engine or self._open(records)
        num_searched = sum(record.role is Role.SEARCH for record in records)
        if self._options.sampler != "random" and num_searched % 2 == 0 and (costs := fit_costs(records)) is not None:
            engine.enqueue_split(balanced(costs, self._bench.info.global_batch, self._bench.limits))
        return engine.ask()

    def heard(self, record: TrialRecord) -> None:
        if record.role is Role.SEARCH:
            assert self._engine is not None
            self._engine.tell(record)

    def _open(self, records: Sequence[TrialRecord]) -> Search:
        from autotune.search.study import Search  # noqa: PLC0415 - Optuna is rank 0's alone

        options = self._options
        space = self._bench.space(reference_speeds(self._bench, records), allow_lossy=options.allow_lossy)
        return Search(self._storage, space, records, sampler=options.sampler, seed=options.seed)


def reference_speeds(bench: Bench, records: Sequence[TrialRecord]) -> tuple[float, ...]:
    """How fast each rank is: as the default showed; if that could not run, as the cluster file states; else all alike."""
    default = default_record(records)
    if default is not None and (costs := fit_costs([default])) is not None:
        return relative_speeds(costs, default.plan.batch.samples)
    if bench.cluster.is_emulated:
        return tuple(1 / seconds for seconds in stated_sample_s(bench.graph, bench.cluster))
    return (1.0,) * len(bench.cluster.devices)
