"""Trials of one rank on real gloo groups: which groups are opened, that all are closed, and failures as outcomes."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn

from autotune.results.store.record import TrialState
from autotune.runtime.errors import PeerLostError
from autotune.runtime.train.trainer import RankContext
from autotune.runtime.transport.groups import Groups
from autotune.runtime.trial.outcome import fault_of
from autotune.runtime.trial.runner import Budget, RankRunner
from autotune.runtime.trial.workers import combine
from autotune.workloads.cluster import Device
from autotune.workloads.errors import InfeasiblePlanError, TrialTimeoutError
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from autotune.workloads.registry import load_workload
from tests.gloo_ranks import gloo_group

WORKLOAD = load_workload("mlp-tiny", {})
CONTEXT = RankContext(rank=0, device=Device(name="cpu"), torch_device=torch.device("cpu"))
BUDGET = Budget(warmup=1, steps=2, timeout_s=30.0, traced=False)
BUCKETED = Plan(batch=BatchPlan(samples=(WORKLOAD.global_batch,)), comm=CommPlan())
SMALL_BUCKETS = replace(BUCKETED, comm=replace(BUCKETED.comm, bucket_bytes=1 << 12))
SCHEDULED = replace(BUCKETED, comm=CommPlan(reducer="scheduled", partition_bytes=1 << 12, credit_bytes=1 << 14))


class OneRank:
    """Opens gloo groups of one rank, and records the order of events."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.groups: list[weakref.ref[dist.ProcessGroup]] = []
        self.host_representatives = (0,)

    @contextmanager
    def open(self, transport: str, **_: Any) -> Iterator[dist.ProcessGroup]:
        group = gloo_group(dist.HashStore(), 0, 1)
        self.groups.append(weakref.ref(group))
        self.events.append(f"open {transport}")
        try:
            yield group
            del group
        finally:
            self.events.append("close")


class Recorded:
    """The workload, with an event for each model, which may be one that fails."""

    def __init__(self, events: list[str], *, fails: bool = False) -> None:
        self._events, self._fails = events, fails

    def __getattr__(self, name: str) -> Any:
        return getattr(WORKLOAD, name)

    def model(self) -> nn.Module:
        self._events.append("model")
        if self._fails:
            raise ValueError("no model\nand more")
        return WORKLOAD.model()


def runner_of(groups: OneRank, *, fails: bool = False) -> RankRunner:
    workload = cast("Any", Recorded(groups.events, fails=fails))
    return RankRunner(workload, cast("Groups", groups), CONTEXT, seed=0)


def test_a_trial_opens_and_closes_one_group() -> None:
    groups = OneRank()
    outcome = runner_of(groups).trial(BUCKETED, BUDGET)
    assert outcome.fault is None
    assert len(outcome.steps_s) == len(outcome.loss_shares) == BUDGET.steps
    assert groups.events == ["open gloo", "model", "close"]
    assert groups.groups[0]() is None, "peers wait until nothing holds the group"


def test_interleaved_plans_share_a_group_except_scheduled_ones() -> None:
    """All groups are opened before any trainer is built: no rank waits for a group of a rank that has failed."""
    groups = OneRank()
    outcomes = runner_of(groups).compare([BUCKETED, SCHEDULED, SMALL_BUCKETS, SCHEDULED], 2, BUDGET)
    assert [len(outcome.steps_s) for outcome in outcomes] == [2] * 4
    assert groups.events == ["open gloo"] * 3 + ["model"] * 4 + ["close"] * 3


def test_a_failure_is_an_outcome_and_releases_the_groups() -> None:
    groups = OneRank()
    outcomes = runner_of(groups, fails=True).compare([BUCKETED, SCHEDULED], 1, BUDGET)
    assert groups.events == ["open gloo"] * 2 + ["model"] + ["close"] * 2
    assert [group() for group in groups.groups] == [None, None]
    assert [outcome.fault.message for outcome in outcomes if outcome.fault is not None] == ["ValueError: no model"] * 2
    measured = combine(outcomes[:1])
    assert (measured.state, measured.reason) == (TrialState.FAILED, "rank 0: ValueError: no model")


def test_a_trial_past_its_time_limit_fails() -> None:
    outcome = runner_of(OneRank()).trial(BUCKETED, replace(BUDGET, timeout_s=0.0, warmup=5))
    assert outcome.fault is not None
    assert outcome.fault.kind == "time"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InfeasiblePlanError("too large"), "memory"),
        (TrialTimeoutError("too long"), "time"),
        (PeerLostError("rank 1 has left"), "peer"),
        (RuntimeError("[gloo/transport/tcp] connection closed"), "peer"),
        (ValueError("a bug"), "own"),
    ],
)
def test_faults_have_a_kind(error: Exception, kind: str) -> None:
    assert fault_of(error).kind == kind
