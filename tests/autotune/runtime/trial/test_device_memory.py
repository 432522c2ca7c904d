"""Where memory ends: which errors mean it, how many models a comparison holds, what is given back."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn

from autotune.results.store.record import TrialState
from autotune.runtime.control.mpi import RankSilentError
from autotune.runtime.device import handle
from autotune.runtime.train.trainer import RankContext
from autotune.runtime.transport.groups import Groups
from autotune.runtime.trial.device_memory import is_out_of_memory, models_at_once
from autotune.runtime.trial.local_step import local_step
from autotune.runtime.trial.outcome import Fault, RankOutcome, fault_of
from autotune.runtime.trial.runner import Budget, RankRunner
from autotune.runtime.trial.workers import combine
from autotune.workloads.cluster import Device
from autotune.workloads.errors import InfeasiblePlanError
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from autotune.workloads.registry import load_workload
from autotune.workloads.serial import to_data
from tests.gloo_ranks import gloo_group

WORKLOAD = load_workload("mlp-tiny", {})
CPU = torch.device("cpu")
CONTEXT = RankContext(rank=0, device=Device(name="cpu"), torch_device=CPU)
BUDGET = Budget(warmup=1, steps=2, timeout_s=30.0, traced=False)
DDP = Plan(batch=BatchPlan(samples=(WORKLOAD.global_batch,)), comm=CommPlan(reducer="ddp"))
BUCKETED = replace(DDP, comm=CommPlan())
SCHEDULED = replace(DDP, comm=CommPlan(reducer="scheduled", partition_bytes=1 << 12, credit_bytes=1 << 14))
PLANS = [DDP, BUCKETED, SCHEDULED, DDP]


class OneRank:
    """Opens gloo groups of one rank and counts them."""

    def __init__(self) -> None:
        self.num_opened = 0
        self.host_representatives = (0,)

    @contextmanager
    def open(self, transport: str, **_: Any) -> Iterator[dist.ProcessGroup]:
        self.num_opened += 1
        yield gloo_group(dist.HashStore(), 0, 1)


class Counted:
    """The workload, with a count of the models that are alive, and a step at which memory ends."""

    def __init__(self, ends_at: int = 10**9, error: Exception | None = None) -> None:
        self.alive: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.most, self.num_built, self.num_losses = 0, 0, 0
        self._ends_at, self._error = ends_at, error or torch.OutOfMemoryError("tried to allocate 8 GiB")

    def __getattr__(self, name: str) -> Any:
        return getattr(WORKLOAD, name)

    def model(self) -> nn.Module:
        model = WORKLOAD.model()
        self.alive.add(model)
        self.num_built += 1
        self.most = max(self.most, len(self.alive))
        return model

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.num_losses += 1
        if self.num_losses >= self._ends_at:
            raise self._error
        return WORKLOAD.loss(model, batch)


def runner_of(workload: Counted, groups: OneRank | None = None, **how: Any) -> RankRunner:
    return RankRunner(cast("Any", workload), cast("Groups", groups or OneRank()), CONTEXT, seed=0, **how)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"), True),
        (RuntimeError("HIP out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"), True),
        (MemoryError(), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_that_mean_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) == expected
    assert (fault_of(error).kind == "memory") == expected


def test_out_of_memory_is_infeasible_with_the_rank_named() -> None:
    """Also where another rank has failed before, on a clock of its own, because this one was missing."""
    memory = replace(fault_of(torch.OutOfMemoryError("tried to allocate 8 GiB")), at_s=9.0)
    peer, consequence = (Fault(kind=kind, message="connection closed", at_s=1.0) for kind in ("peer", "own"))
    measured = combine([RankOutcome(fault=peer), RankOutcome(fault=consequence), RankOutcome(fault=memory)])
    assert measured.state is TrialState.INFEASIBLE
    assert measured.reason == "rank 2: OutOfMemoryError: tried to allocate 8 GiB"
    named = fault_of(InfeasiblePlanError("rank 0 needs 8 GiB for 4 samples"))
    assert combine([RankOutcome(fault=named)]).reason == "rank 0 needs 8 GiB for 4 samples"


def test_a_comparison_that_cannot_hold_all_models_holds_one() -> None:
    held, built = Counted(), Counted()
    together = runner_of(held).compare(PLANS, 2, BUDGET)
    one_by_one = runner_of(built, models_at_once=3).compare(PLANS, 2, BUDGET)
    assert (held.most, held.num_built) == (4, 4)
    assert (built.most, built.num_built) == (1, 4 * 2)
    assert not built.alive
    for outcomes in (together, one_by_one):
        assert [outcome.fault for outcome in outcomes] == [None] * 4
        assert [len(outcome.steps_s) for outcome in outcomes] == [2] * 4
    peaks = [[o.result.peak_memory_bytes for o in outcomes if o.result] for outcomes in (together, one_by_one)]
    assert peaks[0] == peaks[1]


@pytest.mark.slow
def test_a_step_after_a_switch_is_not_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each plan runs one more step in each round than are scored, and its warm-up where it is built anew."""
    held, built = Counted(), Counted()
    runner_of(held).compare(PLANS, 2, replace(BUDGET, warmup=2))
    runner_of(built, models_at_once=1).compare(PLANS, 2, replace(BUDGET, warmup=2))
    assert held.num_losses == 4 * (2 + 2 * (1 + 2))
    assert built.num_losses == 4 * 2 * (2 + 1 + 2)


def test_a_failure_among_models_that_are_built_one_by_one() -> None:
    workload, groups = Counted(ends_at=8), OneRank()
    outcomes = runner_of(workload, groups, models_at_once=1).compare(PLANS, 3, BUDGET)
    assert {outcome.fault.kind for outcome in outcomes if outcome.fault is not None} == {"memory"}
    assert len(outcomes) == 4
    assert not workload.alive, "memory is given back"


def test_how_many_models_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 1000

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    assert models_at_once(10, handle(CPU), ranks_on_host=1) == 10
    assert models_at_once(10, handle(CPU), ranks_on_host=4) == 2
    assert models_at_once(10**6, handle(CPU), ranks_on_host=1) == 1


def alone(message: Any, _timeout_s: float) -> list[Any]:
    return [message]


def test_no_group_is_opened_where_a_local_step_finds_no_memory() -> None:
    workload, groups = Counted(ends_at=2), OneRank()
    outcome = runner_of(workload, groups, share=alone).trial(DDP, BUDGET)
    assert outcome.fault is not None
    assert (outcome.fault.kind, groups.num_opened) == ("memory", 0)
    assert not workload.alive


def test_another_ranks_fault_ends_the_trial_before_its_first_collective() -> None:
    theirs = to_data(fault_of(torch.OutOfMemoryError("tried to allocate 8 GiB")))

    def share(message: Any, _timeout_s: float) -> list[Any]:
        return [message, None, theirs]

    groups = OneRank()
    outcomes = runner_of(Counted(), groups, share=share).compare(PLANS, 1, BUDGET)
    assert [(o.fault.kind, o.fault.message) for o in outcomes if o.fault] == [
        ("peer", "rank 2 cannot run its share")
    ] * 4
    assert groups.num_opened == 0


def test_a_silent_rank_is_not_an_outcome() -> None:
    """The job cannot go on: the leader has to end it."""

    def share(_message: Any, _timeout_s: float) -> Sequence[Any]:
        raise RankSilentError("rank 1 did not answer in time")

    with pytest.raises(RankSilentError):
        runner_of(Counted(), share=share).trial(DDP, BUDGET)


def test_a_local_step_leaves_a_trial_as_it_would_be_without() -> None:
    def losses(**how: Any) -> Sequence[float]:
        return runner_of(Counted(), **how).trial(DDP, BUDGET).loss_shares

    assert losses(share=alone) == losses()


def test_a_rank_without_samples_runs_its_local_step() -> None:
    plan = replace(BUCKETED, batch=BatchPlan(samples=(0, WORKLOAD.global_batch)))
    workload = Counted()
    local_step(cast("Any", workload), plan, CONTEXT, seed=0)
    assert workload.num_losses == 2
